"""Host names: those that an origin may be called, and those that a base URL may not point at without being asked to."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)
_LOCAL_SUFFIXES = ("localhost", "local", "internal", "home.arpa")


def origin_host_reason(host: str) -> str | None:
    """Why ``host`` cannot be the key of an origin, or None (contracts section 4)."""
    if host.startswith("["):
        return None if _is_bracketed_ipv6(host) else "is not an IPv6 address in brackets, without a port"
    if not host.isascii():
        return "must be in punycode (xn--...)"
    if host != host.lower():
        return "must be in lower case"
    if ":" in host:
        return "must not hold a port, and an IPv6 address stands in brackets"
    if "/" in host:
        return "must be a host name, not a URL"
    labels = host.removeprefix("*.").split(".")
    if "*" in "".join(labels):
        return "'*' may only stand as the whole first label, before a name: *.example.com"
    if len(host) > 253 or not all(len(label) <= 63 and _LABEL.fullmatch(label) for label in labels):
        return "is not a host name"
    return None


def _is_bracketed_ipv6(host: str) -> bool:
    try:
        address = ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return host == f"[{address}]"


def base_url_reason(url: str, *, allow_private: bool) -> str | None:
    """Why ``url`` cannot be a provider's base URL, or None (contracts section 5). Never repeats the URL."""
    if not url.isascii() or any(char <= " " or char == "\\" or char == "\x7f" for char in url):
        return "must be an ASCII URL without spaces and backslashes"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not host or port == 0:
        return "must be an http:// or https:// URL with a host"
    if "@" in parts.netloc:
        return "must not hold credentials; use api_key"
    if "?" in url or "#" in url:
        return "must not hold a query or a fragment"
    return _host_reason(host, allow_private=allow_private)


def _host_reason(host: str, *, allow_private: bool) -> str | None:
    address = _address(host)
    if address is None and _NUMERIC.fullmatch(host):
        return "the host is neither a name nor an IP address in its usual form"
    if address is None and (":" in host or not _is_name(host)):
        return "the host is not a host name"
    if allow_private or not (_is_local_name(host) if address is None else _is_inside(address)):
        return None
    return "points at a private or loopback address; set allow_private_base_url: true to allow it"


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_name(host: str) -> bool:
    return all(_LABEL.fullmatch(label) for label in host.removesuffix(".").split("."))


def _is_local_name(host: str) -> bool:
    name = host.removesuffix(".")
    return any(name == suffix or name.endswith(f".{suffix}") for suffix in _LOCAL_SUFFIXES)


def _is_inside(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return not address.is_global or address.is_multicast
