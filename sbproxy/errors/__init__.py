"""The error tree, one module a domain. Import leaves from here."""

from sbproxy.errors.tree import SbproxyError, leaves

__all__ = ["SbproxyError", "leaves"]
