"""What TLS knows of the other side of a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def verified_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The peer's certificate in DER, if it came with one that was verified."""
    tls = transport.get_extra_info("ssl_object")
    # What was not verified has no details.
    if tls is None or not tls.getpeercert():
        return None
    certificate: bytes | None = tls.getpeercert(binary_form=True)
    return certificate
