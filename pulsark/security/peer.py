"""What TLS knows of the other side of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import ssl


def verified_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The peer's certificate in DER, if it came with one that was verified."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else certificate_of(tls)


def certificate_of(tls: ssl.SSLObject | ssl.SSLSocket) -> bytes | None:
    """The same of a connection over TLS."""
    # What was not verified has no details.
    return tls.getpeercert(binary_form=True) if tls.getpeercert() else None
