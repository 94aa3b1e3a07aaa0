"""What this machine can hold a model in: CPU memory, NVIDIA cards."""
