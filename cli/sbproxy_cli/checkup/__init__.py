"""What `sbproxy doctor` finds: probes of this machine, the report that they make, and its text."""
