"""What producers do."""

from __future__ import annotations

from typing import Any

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.frames import send_frame
from tests.scripts.clients import Actor, Sent
from tests.scripts.options import Options, seconds
from tests.scripts.script import Line
from tests.scripts.stage import Stage, topic_name
from tests.support.broker_clients import Command
from tests.support.wire_frames import entry_of, send_command

PUBLISH_PATIENCE = 1.0


async def producer(stage: Stage, line: Line, options: Options) -> None:
    actor, line, options = stage.opened(line, options, "producer")
    fields: dict[str, Any] = options.numbers(epoch="epoch", topic_epoch="topic-epoch")
    if access := options.text("access"):
        fields["producer_access_mode"] = pb.ProducerAccessMode.Value(access)
    if initial := options.text("initial-subscription"):
        fields["initial_subscription_name"] = initial
    await stage.ask(
        actor,
        Command.PRODUCER,
        topic=topic_name(options.text("topic")),
        producer_id=actor.number,
        producer_name=options.text("name", actor.name),
        **fields,
    )


async def publish(stage: Stage, line: Line, options: Options) -> None:
    """One message after the other, each in its entry."""
    actor = stage.actor(line.words[0])
    sequence = options.number("sequence", actor.next_sequence)
    fields = _metadata(stage, options)
    for name in line.words[1:]:
        payload = b"" if fields.get("null_value") else name.encode()
        entry = entry_of(payload, sequence, **{"producer_name": actor.name, **fields})
        _send(stage, actor, Sent(sequence, [name], batch=False), entry)
        sequence += 1
    await _published(stage, actor, sequence)


async def batch(stage: Stage, line: Line, options: Options) -> None:
    """All messages in one entry."""
    actor = stage.actor(line.words[0])
    sequence = options.number("sequence", actor.next_sequence)
    names = list(line.words[1:])
    keys = options.text("keys").split(",") if "keys" in options else [""] * len(names)
    ids = {"sequence_id": sequence, "highest_sequence_id": sequence + len(names) - 1}
    fields = {"producer_name": actor.name, **ids, **_metadata(stage, options)}
    singles = [
        pb.SingleMessageMetadata(sequence_id=sequence + i, **({"partition_key": k} if k else {}))
        for i, k in enumerate(keys)
    ]
    messages = [(single, name.encode()) for single, name in zip(singles, names, strict=True)]
    entry = build_batch(pb.MessageMetadata(**fields), messages)
    _send(stage, actor, Sent(sequence, names, batch=True), entry)
    await _published(stage, actor, sequence + len(names))


def _metadata(stage: Stage, options: Options) -> dict[str, Any]:
    now = stage.process.clock.now_ms()
    fields: dict[str, Any] = {"publish_time": now}
    if key := options.text("key"):
        fields["partition_key"] = key
    if key := options.text("ordering-key"):
        fields["ordering_key"] = key.encode()
    if delay := options.text("deliver-after"):
        fields["deliver_at_time"] = now + int(seconds(delay) * 1000)
    if options.flag("null"):
        fields["null_value"] = True
    if chunk := options.text("chunk"):
        number, total = map(int, chunk.split("/"))
        fields |= {
            "uuid": options.text("uuid"),
            "chunk_id": number - 1,
            "num_chunks_from_msg": total,
            "total_chunk_msg_size": total,
        }
    return fields


def _send(stage: Stage, actor: Actor, sent: Sent, entry: bytes) -> None:
    actor.pending.append(sent)
    now = stage.process.clock.now_ms()
    stage.messages.published_ms.update(dict.fromkeys(sent.names, now))
    command = send_command(actor.number, sent.sequence_id, len(sent.names))
    if sent.batch:
        command.send.highest_sequence_id = sent.sequence_id + len(sent.names) - 1
    actor.link.client.send_bytes(send_frame(command, entry))


async def _published(stage: Stage, actor: Actor, next_sequence: int) -> None:
    actor.next_sequence = next_sequence
    await stage.until(lambda: not actor.pending or actor.link.lost, PUBLISH_PATIENCE)


COMMANDS = {"producer": producer, "publish": publish, "batch": batch}
