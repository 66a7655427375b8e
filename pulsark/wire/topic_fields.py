"""Answers with very many topics: the field that holds them is built once for all clients."""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING

from pulsark.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_sizes = struct.Struct(">II")
_LENGTH_DELIMITED = 2


class TopicsField(Enum):
    """The message, or the part of a command, that has a list of topics."""

    LISTED = "getTopicsOfNamespaceResponse"
    WATCHED = "watchTopicListSuccess"
    SNAPSHOT = "snapshot"
    """In a watch of Pulsar 5's clients; added topics look the same."""


def topic_fields(field: TopicsField, topics: Iterable[str]) -> bytes:
    """Topics as they are inside of that part; what several calls gave may follow each other."""
    if field is TopicsField.LISTED:
        return pb.CommandGetTopicsOfNamespaceResponse(topics=topics).SerializePartialToString()
    if field is TopicsField.SNAPSHOT:
        return pb.ScalableTopicsSnapshot(topics=topics).SerializePartialToString()
    return pb.CommandWatchTopicListSuccess(topic=topics).SerializePartialToString()


def frame_with_topics(
    command: pb.BaseCommand, field: TopicsField, topics: Sequence[bytes]
) -> list[bytes]:
    """The frame of a command whose part is without topics yet; these are added, not copied."""
    part = getattr(command, field.value).SerializeToString()
    head = pb.BaseCommand(type=command.type).SerializeToString()
    number = pb.BaseCommand.DESCRIPTOR.fields_by_name[field.value].number
    size = len(part) + sum(map(len, topics))
    head += length_delimited(number, size)
    whole = len(head) + size
    return [_sizes.pack(whole + 4, whole) + head + part, *topics]


def length_delimited(number: int, size: int) -> bytes:
    """The head of a message's field whose value has this many bytes."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
    pieces = bytearray()
    while number > 0x7F:
        pieces.append(number & 0x7F | 0x80)
        number >>= 7
    pieces.append(number)
    return bytes(pieces)
