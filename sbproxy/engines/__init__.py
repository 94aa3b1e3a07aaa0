"""Engine drivers: availability, acquisition, argv, process life, exit verdicts."""
