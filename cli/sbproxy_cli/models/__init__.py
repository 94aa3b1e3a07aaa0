"""`sbproxy models`: the catalog, the cache of this machine, and the deployments of a running daemon."""
