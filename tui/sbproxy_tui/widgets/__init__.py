"""Widgets show what a selector gives them and never call the client."""
