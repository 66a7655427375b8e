"""The frames that tell Pulsar 5's clients of segments and topics: long where there are many."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_fields import length_delimited

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.protobuf.message import Message

_sizes = struct.Struct(">II")
_UPDATE = pb.BaseCommand.SCALABLE_TOPIC_UPDATE
_ANSWER = pb.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE
_WATCHED = pb.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE
_ASSIGNED = pb.BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE


class Segment(NamedTuple):
    """A partition, or a topic without partitions, as a part of a layout."""

    number: int
    """The partition's number: clients choose a segment by it."""
    hash_start: int
    hash_end: int
    """The last hash, not the one behind it."""
    topic: str
    """What clients subscribe to and publish to."""


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


def assigned_fields(segments: Iterable[Segment]) -> bytes:
    """The same inside of the share of a consumer."""
    return pb.ScalableConsumerAssignment(
        segments=[
            pb.ScalableAssignedSegment(
                segment_id=segment.number,
                hash_start=segment.hash_start,
                hash_end=segment.hash_end,
                segment_topic=segment.topic,
            )
            for segment in segments
        ]
    ).SerializePartialToString()


def layout_frame(
    session_id: int, resolved_name: str, epoch: int, segments: Sequence[bytes]
) -> list[bytes]:
    """The frame of a layout for one session, in pieces; those of the segments are not copied."""
    update = pb.CommandScalableTopicUpdate(session_id=session_id, resolved_topic_name=resolved_name)
    return _frame(_UPDATE, update, "dag", pb.ScalableTopicDAG(epoch=epoch), segments)


def first_share_frame(request_id: int, epoch: int, segments: Sequence[bytes]) -> list[bytes]:
    """The frame of a consumer's first share: the answer to its request."""
    answer = pb.CommandScalableTopicSubscribeResponse(request_id=request_id)
    share = pb.ScalableConsumerAssignment(layout_epoch=epoch)
    return _frame(_ANSWER, answer, "assignment", share, segments)


def share_frame(consumer_id: int, epoch: int, segments: Sequence[bytes]) -> list[bytes]:
    """The frame of a later share of a consumer."""
    update = pb.CommandScalableTopicAssignmentUpdate(consumer_id=consumer_id)
    share = pb.ScalableConsumerAssignment(layout_epoch=epoch)
    return _frame(_ASSIGNED, update, "assignment", share, segments)


def snapshot_frame(watch_id: int, topics: Sequence[bytes]) -> list[bytes]:
    """The frame with the topics that a namespace has, as ``TopicsField.SNAPSHOT`` has them."""
    update = pb.CommandWatchScalableTopicsUpdate(watch_id=watch_id)
    return _frame(_WATCHED, update, "snapshot", pb.ScalableTopicsSnapshot(), topics)


def added_frame(watch_id: int, topics: Sequence[bytes]) -> list[bytes]:
    """The frame with topics that it has besides; a snapshot may go on so."""
    update = pb.CommandWatchScalableTopicsUpdate(watch_id=watch_id)
    return _frame(_WATCHED, update, "diff", pb.ScalableTopicsDiff(), topics)


def _frame(
    kind: pb.BaseCommand.Type, command: Message, field: str, inner: Message, pieces: Sequence[bytes]
) -> list[bytes]:
    """The frame of a command with one more field; that begins with ``inner``, then the pieces."""
    long = sum(map(len, pieces))
    begin = inner.SerializePartialToString()
    number = command.DESCRIPTOR.fields_by_name[field].number
    begin = length_delimited(number, len(begin) + long) + begin
    part = command.SerializePartialToString()
    size = len(part) + len(begin) + long
    head = pb.BaseCommand(type=kind).SerializeToString() + length_delimited(kind, size)
    whole = len(head) + size
    return [_sizes.pack(whole + 4, whole) + head + part + begin, *pieces]
