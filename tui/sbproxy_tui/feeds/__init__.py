"""Asynchronous workers that turn answers of the admin API into events."""
