"""The frame that tells a client the layout of a topic: very long for very many partitions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_fields import length_delimited

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_sizes = struct.Struct(">II")
_UPDATE = pb.BaseCommand.SCALABLE_TOPIC_UPDATE
_DAG = pb.CommandScalableTopicUpdate.DESCRIPTOR.fields_by_name["dag"].number


class Segment(NamedTuple):
    """A partition, or a topic without partitions, as a part of a layout."""

    number: int
    """That of the partition: clients choose a segment by it."""
    hash_start: int
    hash_end: int
    """The last hash, not the one behind it."""
    topic: str
    """What clients attach to."""


def segment_fields(segments: Iterable[Segment], created_ms: int) -> bytes:
    """Segments as they are inside of a layout; what several calls gave may follow each other."""
    return pb.ScalableTopicDAG(
        segments=[
            pb.SegmentInfoProto(
                segment_id=segment.number,
                hash_start=segment.hash_start,
                hash_end=segment.hash_end,
                state=pb.SegmentState.ACTIVE,
                created_at_epoch=0,
                created_at_ms=created_ms,
                legacy_topic_name=segment.topic,
            )
            for segment in segments
        ]
    ).SerializePartialToString()


def layout_frame(
    session_id: int, resolved_name: str, epoch: int, segments: Sequence[bytes]
) -> list[bytes]:
    """The frame for one session, in pieces; those of the segments are not copied."""
    dag = pb.ScalableTopicDAG(epoch=epoch).SerializeToString()
    dag = length_delimited(_DAG, len(dag) + sum(map(len, segments))) + dag
    update = pb.CommandScalableTopicUpdate(
        session_id=session_id, resolved_topic_name=resolved_name
    ).SerializeToString()
    size = len(update) + len(dag) + sum(map(len, segments))
    head = pb.BaseCommand(type=_UPDATE).SerializeToString() + length_delimited(_UPDATE, size)
    whole = len(head) + size
    return [_sizes.pack(whole + 4, whole) + head + update + dag, *segments]
