"""The content-addressed artifact store: fetch, resume, verify, publish, lease, remove."""
