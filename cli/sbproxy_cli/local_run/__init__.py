"""What `sbproxy run` does: a plan, its generated configuration, and the daemon that lives as long as the command."""
