"""SBproxy: one daemon for serving, hosting and clustering language models."""

__version__ = "0.1.0"
