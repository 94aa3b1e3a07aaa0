"""Typed asynchronous client of the admin API, for the CLI and the console only."""
