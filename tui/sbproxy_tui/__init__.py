"""The Textual console: a client of the admin API and nothing else."""
