"""Looks whether the two ports of a run are free, before anything is fetched."""

from __future__ import annotations

import errno
import socket

from sbproxy.errors.cli import PortTaken
from sbproxy_cli.local_run.plan import BIND


def require_free(port: int, purpose: str, option: str) -> None:
    """PortTaken when something listens on 127.0.0.1:``port``, or this user may not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((BIND, port))
            probe.listen(1)
        except OSError as error:
            reason = "in use" if error.errno == errno.EADDRINUSE else (error.strerror or "unusable").lower()
            raise PortTaken(port, purpose, option, reason) from None


def free_port(other_than: int) -> int:
    """A port that the system would give out now."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((BIND, 0))
            port: int = probe.getsockname()[1]
        if port != other_than:
            return port
