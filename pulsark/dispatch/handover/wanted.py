"""Which broker a client wants, according to its CONNECT command. Pure."""

from __future__ import annotations

import re
from typing import Final

from pulsark.errors import ProtocolError
from pulsark.limits import HANDSHAKE_FRAME_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import FrameDecoder

_SIZE_BYTES: Final = 4
_ADDRESS: Final = re.compile(r"(?:pulsar://)?(\S{1,255}):([1-9][0-9]{0,4})/?", re.ASCII)


def missing(data: bytes) -> int:
    """The number of bytes that ``wanted`` needs in total; 0 if ``data`` is enough.

    Bytes that cannot become a CONNECT, or only one that is too large, are always enough.
    """
    if len(data) < _SIZE_BYTES:
        return _SIZE_BYTES
    size = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
    return size if len(data) < size <= HANDSHAKE_FRAME_BYTES_MAX else 0


def wanted(data: bytes) -> str:
    """The broker that a CONNECT names, as ``host:port``; empty if ``data`` is anything else.

    The broker that serves the client reports what is wrong with it.
    """
    size = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
    try:
        found = FrameDecoder(HANDSHAKE_FRAME_BYTES_MAX).receive(data[:size])
    except ProtocolError:
        return ""
    if not found or found[0][0].type != pb.BaseCommand.CONNECT:
        return ""
    return found[0][0].connect.proxy_to_broker_url


def split_address(url: str) -> tuple[str, int] | None:
    """Host and port; ``None`` if ``url`` is not a broker's address."""
    found = _ADDRESS.fullmatch(url)
    return None if found is None else (found[1], int(found[2]))
