"""Composition root: build everything, run, reload as one transaction, drain, stop."""
