"""Takes the data plane's port before anything slow happens, and lets nobody in before there is something to say."""

from __future__ import annotations

import os
import socket

from sbproxy.errors.daemon import ListenFailed


def reserve(bind: str, port: int) -> socket.socket:
    """A bound socket that does not listen: the port is ours, and a client that comes early is refused at once.

    Raises ListenFailed.
    """
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setblocking(False)
        if os.name == "posix":
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((bind, port))
    except OSError as error:
        taken.close()
        raise ListenFailed(bind, port, error.strerror or str(error)) from error
    return taken
