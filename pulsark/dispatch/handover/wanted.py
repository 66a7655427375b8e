"""Which broker a client wants, by the first bytes that it sent. Pure."""

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
    """How many bytes have to be there in all before ``wanted`` can be asked; 0: these are enough.

    What is no frame, or one that is too large for a CONNECT, is never waited for.
    """
    if len(data) < _SIZE_BYTES:
        return _SIZE_BYTES
    size = _SIZE_BYTES + int.from_bytes(data[:_SIZE_BYTES], "big")
    return size if len(data) < size <= HANDSHAKE_FRAME_BYTES_MAX else 0


def wanted(data: bytes) -> str:
    """The broker that is named in a CONNECT, as ``host:port``; empty for all else.

    What is wrong with other bytes is for the one who serves the client to say.
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
    """Host and port; ``None`` if it is no address of a broker."""
    found = _ADDRESS.fullmatch(url)
    return None if found is None else (found[1], int(found[2]))
