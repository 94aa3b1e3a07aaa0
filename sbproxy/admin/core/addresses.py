"""Decides which client addresses may speak to the admin listener (``proxy.admin.allow_ips``), and which are one."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


class AddressGate:
    """Addresses and CIDR networks; an empty list means loopback only. ValueError on an entry that is neither."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._networks = [ip_network(entry, strict=False) for entry in allowed]

    def admits(self, remote: str | None) -> bool:
        if remote is None:
            return False
        try:
            address = _plain(ip_address(remote.partition("%")[0]))
        except ValueError:
            return False
        if not self._networks:
            return address.is_loopback
        return any(address in network for network in self._networks)


def counted_as(remote: str | None) -> str:
    """The name under which a client is counted: everything on loopback is one machine, whatever address it picks."""
    try:
        address = _plain(ip_address((remote or "").partition("%")[0]))
    except ValueError:
        return remote or ""
    return "loopback" if address.is_loopback else str(address)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """A dual-stack socket shows IPv4 clients as ``::ffff:a.b.c.d``."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
