"""What a compacted ledger stores: an entry of the topic, preceded by its position there."""

from __future__ import annotations

import struct

from pulsark.wire.position import Position

_place = struct.Struct(">QQ")


def pack(position: Position, entry: bytes) -> bytes:
    """The stored form of an entry."""
    return _place.pack(*position) + entry


def unpack(stored: bytes) -> tuple[Position, bytes]:
    """The inverse of ``pack``."""
    return Position(*_place.unpack_from(stored)), stored[_place.size :]
