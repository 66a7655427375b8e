"""A command of each kind, about one topic, with all that it needs."""

from __future__ import annotations

from pulsark.wire import pulsar_pb2 as pb

TOPIC = "persistent://acme/web/clicks"
REQUEST_ID = 7

Command = pb.BaseCommand


def sample_of(kind: int) -> pb.BaseCommand:
    """A command with names in all of its fields."""
    command = Command(type=kind)  # type: ignore[arg-type]
    request = getattr(command, Command.DESCRIPTOR.fields_by_number[kind].name)
    request.SetInParent()
    for field in request.DESCRIPTOR.fields:
        if field.is_required and field.message_type is None:
            setattr(request, field.name, field.default_value)
    names = request.DESCRIPTOR.fields_by_name
    known = {
        "request_id": REQUEST_ID,
        "session_id": REQUEST_ID,
        "watch_id": REQUEST_ID,
        "namespace": "acme/web",
        "topic": TOPIC,
        "initial_subscription_name": "s",
        "consumer_name": "c",
        "topics_pattern": ".*",
    }
    for name, value in known.items():
        if name in names:
            setattr(request, name, value)
    if "partitions" in names:
        request.partitions.append(TOPIC)
    if kind == Command.ADD_SUBSCRIPTION_TO_TXN:
        request.subscription.add(topic=TOPIC, subscription="s")
    elif "subscription" in names and names["subscription"].message_type is None:
        request.subscription = "s"
    if kind == Command.GET_OR_CREATE_SCHEMA:
        request.schema.name, request.schema.schema_data = "s", b""
        request.schema.type = pb.Schema.String
    return command
