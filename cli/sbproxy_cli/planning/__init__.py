"""`plan` and `apply`: what a configuration would change, and sending it to a daemon (contracts section 13)."""
