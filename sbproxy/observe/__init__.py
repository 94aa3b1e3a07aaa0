"""Metrics and the request record."""
