"""What the broker says, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsark.wire import pulsar_pb2 as pb
from tests.scripts.messages import Messages
from tests.support.broker_clients import Command


def refused(code: int) -> str:
    """An error, by the name of its code."""
    return f"refused, {pb.ServerError.Name(code)}"  # type: ignore[arg-type]


def _producer(part: pb.CommandProducerSuccess, _: Messages) -> str:
    notes = ["ready" if part.producer_ready else "has to wait"]
    if part.HasField("topic_epoch"):
        notes.append(f"topic epoch {part.topic_epoch}")
    if part.last_sequence_id >= 0:
        notes.append(f"last sequence {part.last_sequence_id}")
    return ", ".join(notes)


def _ack(part: pb.CommandAckResponse, _: Messages) -> str:
    return refused(part.error) if part.HasField("error") else "acknowledged"


def _last(part: pb.CommandGetLastMessageIdResponse, messages: Messages) -> str:
    text = f"last message {messages.id_text(part.last_message_id)}"
    if part.HasField("consumer_mark_delete_position"):
        text += f", mark-delete {messages.id_text(part.consumer_mark_delete_position)}"
    return text


def _lookup(part: pb.CommandLookupTopicResponse, _: Messages) -> str:
    kind = pb.CommandLookupTopicResponse.LookupType.Name(part.response)
    if kind == "Failed":
        return refused(part.error)
    notes = [f"{kind} {part.brokerServiceUrl}"]
    if part.authoritative:
        notes.append("authoritative")
    if part.proxy_through_service_url:
        notes.append("through the service URL")
    return ", ".join(notes)


def _partitions(part: pb.CommandPartitionedTopicMetadataResponse, _: Messages) -> str:
    if part.response == pb.CommandPartitionedTopicMetadataResponse.Failed:
        return refused(part.error)
    return f"{part.partitions} partitions"


def _stats(part: pb.CommandConsumerStatsResponse, _: Messages) -> str:
    if part.HasField("error_code"):
        return refused(part.error_code)
    blocked = ", blocked" if part.blockedConsumerOnUnackedMsgs else ""
    return (
        f"{part.type}, permits {part.availablePermits}, unacknowledged {part.unackedMessages}, "
        f"backlog {part.msgBacklog}{blocked}"
    )


def _topics(part: Any, _: Messages) -> str:
    return " ".join(sorted(getattr(part, "topics", None) or getattr(part, "topic", []))) or "none"


def _update(part: pb.CommandWatchTopicUpdate, _: Messages) -> str:
    new = [f"+{name}" for name in part.new_topics]
    return " ".join(new + [f"-{name}" for name in part.deleted_topics])


def _layout(part: pb.CommandScalableTopicUpdate, _: Messages) -> str:
    if part.HasField("error"):
        return refused(part.error)
    topics = " ".join(segment.legacy_topic_name for segment in part.dag.segments)
    return f"{part.resolved_topic_name} is {topics}"


def _share(part: Any, _: Messages) -> str:
    if part.DESCRIPTOR.fields_by_name.get("error") and part.HasField("error"):
        return refused(part.error)
    numbers = [str(segment.segment_id) for segment in part.assignment.segments]
    return f"segments {' '.join(numbers) or 'none'}"


SAID: dict[int, Callable[[Any, Messages], str]] = {
    Command.SUCCESS: lambda _part, _messages: "ok",
    Command.ERROR: lambda part, _: refused(part.error),
    Command.PRODUCER_SUCCESS: _producer,
    Command.ACTIVE_CONSUMER_CHANGE: lambda part, _: "active" if part.is_active else "not active",
    Command.REACHED_END_OF_TOPIC: lambda _part, _messages: "end of topic",
    Command.ACK_RESPONSE: _ack,
    Command.GET_LAST_MESSAGE_ID_RESPONSE: _last,
    Command.LOOKUP_RESPONSE: _lookup,
    Command.PARTITIONED_METADATA_RESPONSE: _partitions,
    Command.CONSUMER_STATS_RESPONSE: _stats,
    Command.GET_TOPICS_OF_NAMESPACE_RESPONSE: _topics,
    Command.WATCH_TOPIC_LIST_SUCCESS: _topics,
    Command.WATCH_TOPIC_UPDATE: _update,
    Command.SCALABLE_TOPIC_UPDATE: _layout,
    Command.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE: _share,
    Command.SCALABLE_TOPIC_ASSIGNMENT_UPDATE: _share,
}
"""By the type of command; the part of it that is set, and the names of what it tells of."""
