"""What a compacted ledger stores: an entry of the topic, preceded by its position there."""

from __future__ import annotations

import struct

from pulsark.wire.position import Position

_position = struct.Struct(">QQ")


def pack(position: Position, entry: bytes) -> bytes:
    """The stored form of an entry."""
    return _position.pack(*position) + entry


def unpack(stored: bytes) -> tuple[Position, bytes]:
    """The inverse of ``pack``."""
    return Position(*_position.unpack_from(stored)), stored[_position.size :]
