"""One HTTP conversation in a thread of its own: redirects in bounds, credentials kept to their host, body streamed.

The thread is there so that a silent peer or a slow name server can't hold up a cancellation; what it read
arrives over a short queue.
"""

from __future__ import annotations

import functools
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx

from sbproxy.artifacts.core.answer import MAX_HOPS, Head, next_hop, origin
from sbproxy.artifacts.core.redaction import redact
from sbproxy.artifacts.credentials import Token
from sbproxy.artifacts.progress import PullTracker
from sbproxy.artifacts.transport import BrokenOff, Timeouts

_QUEUED_CHUNKS = 32
_POLL_S = 0.1
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@functools.cache
def _trust() -> ssl.SSLContext:
    """Loading the certificates costs more than a small file's whole exchange, so it is done once a process."""
    try:
        return httpx.create_ssl_context(trust_env=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise BrokenOff(f"the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be loaded: {reason}") from error


class Conversation(threading.Thread):
    """Started by its owner, read with :meth:`next_item` and :meth:`body`, ended with :meth:`abandon`."""

    def __init__(self, url: str, headers: dict[str, str], token: Token | None, timeouts: Timeouts) -> None:
        super().__init__(name="artifact-http", daemon=True)
        self._url = url
        self._headers = headers
        self._token = token
        self._timeouts = timeouts
        self._items: queue.Queue[Head | bytes | Exception | None] = queue.Queue(_QUEUED_CHUNKS)
        self._stop = threading.Event()
        self._socket: socket.socket | None = None

    def next_item(self, tracker: PullTracker) -> Head | bytes | None:
        """The head, then chunks, then ``None``. Raises what the conversation ended with."""
        while True:
            tracker.check()
            try:
                item = self._items.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            return item

    def body(self, tracker: PullTracker) -> Iterator[bytes]:
        while isinstance(item := self.next_item(tracker), bytes):
            yield item

    def abandon(self) -> None:
        """End the thread soon: it sees the flag between chunks, and a blocked read sees its socket shut."""
        self._stop.set()
        if self._socket is not None:
            with suppress(OSError):
                # The plain socket's shutdown: that of a TLS socket would touch state the other thread is using.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def run(self) -> None:
        try:
            self._converse()
            self._put(None)
        except BrokenOff as error:
            self._put(error)
        except httpx.TimeoutException as error:
            self._put(BrokenOff(self._timeout_text(isinstance(error, httpx.ConnectTimeout))))
        except (httpx.HTTPError, httpx.StreamError) as error:
            self._put(BrokenOff(redact(str(error)) or type(error).__name__))
        except (httpx.InvalidURL, httpx.CookieConflict, ValueError) as error:
            self._put(BrokenOff(redact(str(error)), final=True))
        except OSError as error:
            # Not of the store's disk: certificates that cannot be loaded, no descriptor left for a socket.
            self._put(BrokenOff(f"no connection can be made: {error.strerror or type(error).__name__}"))
        except Exception as error:  # noqa: BLE001 - a thread's top: whoever waits must learn how it ended
            self._put(error)

    def _converse(self) -> None:
        timeout = httpx.Timeout(self._timeouts.read_s, connect=self._timeouts.connect_s)
        home = origin(self._url)
        url = self._url
        linked: dict[str, str] = {}
        with httpx.Client(verify=_trust(), timeout=timeout, follow_redirects=False, trust_env=True) as client:
            for hop in range(MAX_HOPS + 1):  # next_hop refuses the one that would be too many
                foreign = origin(url) != home
                secret = self._token.header() if self._token and not foreign else {}
                with client.stream("GET", url, headers={**self._headers, **secret}) as response:
                    if not foreign:
                        linked.update({k: v for k, v in response.headers.items() if k.startswith("x-linked-")})
                    location = response.headers.get("location")
                    if response.status_code in _REDIRECTS and location is not None:
                        url = next_hop(url, location, hop)
                        continue
                    self._deliver(response, Head(response.status_code, dict(response.headers), foreign, linked))
                return

    def _deliver(self, response: httpx.Response, head: Head) -> None:
        stream = response.extensions.get("network_stream")
        self._socket = stream.get_extra_info("socket") if stream is not None else None
        self._put(head)
        for chunk in response.iter_raw():
            if not self._put(chunk):
                return

    def _put(self, item: Head | bytes | Exception | None) -> bool:
        while not self._stop.is_set():
            with suppress(queue.Full):
                self._items.put(item, timeout=_POLL_S)
                return True
        return False

    def _timeout_text(self, connecting: bool) -> str:
        if connecting:
            return f"no connection within {self._timeouts.connect_s:g} s"
        return f"no bytes for {self._timeouts.read_s:g} s"
