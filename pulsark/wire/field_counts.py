"""How many fields an encoded message has, found without decoding it.

Decoding makes an object of each field, which may take thirty times its bytes. So a large message
of a peer is counted first: a real one has few fields, and large ones.
"""

from __future__ import annotations

from typing import Any, Final

from pulsark.errors import ProtocolError

DEPTH_MAX: Final = 100
"""Most levels of messages, as in the decoder."""

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_VARINT_BYTES_MAX: Final = 10


def has_more_fields(data: bytes, kind: Any, most: int) -> bool:
    """Return whether a message and those in it have more than ``most`` fields.

    ``kind`` is the message's descriptor.

    It stops counting there. ``ProtocolError`` if the bytes are no message.
    """
    return _count(data, 0, len(data), kind, most, DEPTH_MAX) > most


def number_in(data: bytes, kind: Any, *names: str) -> int | None:
    """Return a number of a message by the names of the fields around it and its own, if it is set.

    ``ProtocolError`` if the bytes are no message.
    """
    start, end = 0, len(data)
    for depth, name in enumerate(names):
        wanted = kind.fields_by_name.get(name)
        if wanted is None:
            return None
        is_last = depth == len(names) - 1
        at, found = start, None
        while at < end:
            number, wire, value, at = _field(data, at, end)
            if number == wanted.number and wire == (_VARINT if is_last else _BYTES):
                found = value
                if not is_last:
                    start, end = at - value, at
                break
        if found is None:
            return None
        if is_last:
            return found
        kind = wanted.message_type
    return None


def _count(data: bytes, at: int, end: int, kind: Any, most: int, depth: int) -> int:
    if depth == 0:
        raise ProtocolError(f"A message with more than {DEPTH_MAX} levels")
    fields, count = kind.fields_by_number, 0
    while at < end and count <= most:
        number, wire, value, at = _field(data, at, end)
        count += 1
        if wire == _BYTES:
            field = fields.get(number)
            if field is not None and field.message_type is not None:
                count += _count(data, at - value, at, field.message_type, most - count, depth - 1)
    return count


def _field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Return a field's number, its wire type, its value or length, and where it ends."""
    tag, at = _varint(data, at, end)
    wire, value = tag & 7, 0
    if wire == _BYTES:
        value, at = _varint(data, at, end)
        at += value
    elif wire == _VARINT:
        value, at = _varint(data, at, end)
    elif wire == _FIXED64:
        at += 8
    elif wire == _FIXED32:
        at += 4
    else:
        raise ProtocolError(f"A field of wire type {wire}")
    if at > end:
        raise ProtocolError("A field that is longer than its message")
    return tag >> 3, wire, value, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(at, min(at + _VARINT_BYTES_MAX, end)):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place + 1
        shift += 7
    raise ProtocolError("A number that does not end")
