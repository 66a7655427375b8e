"""Which addresses count as one client. Pure."""

from __future__ import annotations

import ipaddress

_PREFIX_BITS = 64


def network_of(host: str) -> str:
    """An IPv4 address, or the network of an IPv6 address: one machine has all of its addresses."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _PREFIX_BITS), strict=False))
