"""Which address is an admin address, and whether it is this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from sbproxy.errors.client import AdminUrlInvalid


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """``base`` has a scheme and host, maybe a port and a path prefix, and no trailing slash."""

    base: str
    loopback: bool


def admin_target(url: str) -> AdminTarget:
    """Check ``url``; AdminUrlInvalid says what is wrong with it."""
    try:
        parts = urlsplit(url.strip())
        host, _port = parts.hostname, parts.port
    except ValueError as broken:
        raise AdminUrlInvalid(url, str(broken)) from None
    if parts.username is not None or parts.password is not None:
        # The address is repeated in messages; a password in it must not be.
        raise AdminUrlInvalid(f"{parts.scheme}://…@{host}", "it must not hold a user or password")
    if parts.scheme not in ("http", "https"):
        raise AdminUrlInvalid(url, "it must begin with http:// or https://")
    if not host:
        raise AdminUrlInvalid(url, "it names no host")
    if parts.query or parts.fragment:
        raise AdminUrlInvalid(url, "it must not hold a query or fragment")
    return AdminTarget(f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/"), _is_loopback(host))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
