"""What the admin API decides without touching a socket or a clock."""
