"""The sbproxy command line: a client of the admin API and of the local artifact store."""
