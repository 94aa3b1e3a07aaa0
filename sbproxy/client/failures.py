"""Turns what httpx raises into leaves of the error tree; everything else passes."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from sbproxy.errors.client import DaemonSilent, DaemonUnreachable, ProtocolMismatch


@contextmanager
def named_failures(url: str, action: str, timeout_s: float) -> Iterator[None]:
    """DaemonUnreachable, DaemonSilent or ProtocolMismatch instead of a transport error inside the block."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise DaemonUnreachable(url, "connecting took too long") from None
    except httpx.TimeoutException:
        raise DaemonSilent(url, action, timeout_s) from None
    except httpx.ConnectError as error:
        raise DaemonUnreachable(url, _cause(error)) from None
    except httpx.RemoteProtocolError as error:
        # h11 words an early end as the peer's doing; every other protocol error means that it is not HTTP.
        if "peer closed" in str(error) or "disconnected" in str(error):
            raise DaemonUnreachable(url, "the connection ended early") from None
        raise ProtocolMismatch(url, action, "it does not speak HTTP") from None
    except httpx.TransportError as error:
        raise DaemonUnreachable(url, f"the connection broke: {str(error) or type(error).__name__}") from None


def _cause(error: httpx.ConnectError) -> str:
    """The system's own words (`connection refused`) where the chain holds them."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return "it does not speak TLS; http:// may be meant"
        if isinstance(seen, OSError) and seen.errno is not None and seen.errno > 0:
            return os.strerror(seen.errno).lower()
        seen = seen.__cause__ or seen.__context__
    return str(error) or "no connection"
