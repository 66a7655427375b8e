"""What consumers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pulsark.wire import pulsar_pb2 as pb
from tests.scripts.clients import Actor
from tests.scripts.messages import Place
from tests.scripts.options import Options, seconds
from tests.scripts.script import Line
from tests.scripts.stage import Stage, topic_name
from tests.support.broker_clients import Command


async def subscribe(stage: Stage, line: Line, options: Options) -> None:
    actor, line, options = stage.opened(line, options, "consumer")
    _, subscription = line.words
    permits = options.number("permits", 1000)
    durable = options.flag("durable", True)
    start = options.text("from", "earliest")
    fields: dict[str, Any] = options.numbers(
        consumer_epoch="epoch",
        priority_level="priority",
        start_message_rollback_duration_sec="rollback",
    )
    if not durable:
        fields["start_message_id"] = stage.messages.place(start).fill
    if "compacted" in options:
        fields["read_compacted"] = options.flag("compacted")
    if "create" in options:
        fields["force_topic_creation"] = options.flag("create")
    if "ranges" in options or "out-of-order" in options:
        fields["keySharedMeta"] = _key_shared(options)
    await stage.ask(
        actor,
        Command.SUBSCRIBE,
        topic=topic_name(options.text("topic")),
        subscription=subscription,
        subType=pb.CommandSubscribe.SubType.Value(options.text("type", "Exclusive")),
        consumer_id=actor.number,
        consumer_name=options.text("name", actor.name),
        durable=durable,
        initialPosition=pb.CommandSubscribe.InitialPosition.Value(
            "Latest" if start == "latest" else "Earliest"
        ),
        **fields,
    )
    if permits:
        _tell(actor, Command.FLOW, messagePermits=permits)


def _tell(actor: Actor, kind: int, **values: Any) -> None:
    actor.link.tell(kind, consumer_id=actor.number, **values)


async def flow(stage: Stage, line: Line, options: Options) -> None:
    name, permits = line.words
    _tell(stage.actor(name), Command.FLOW, messagePermits=int(permits))


async def ack(stage: Stage, line: Line, options: Options) -> None:
    ids = stage.messages.entries(line.words[1:])
    await _acknowledge(stage, line, options, "Individual", ids)


async def ack_up_to(stage: Stage, line: Line, options: Options) -> None:
    _, word = line.words
    await _acknowledge(stage, line, options, "Cumulative", [stage.messages.up_to(word)])


async def _acknowledge(
    stage: Stage, line: Line, options: Options, kind: str, ids: Iterable[tuple[Place, int]]
) -> None:
    actor = stage.actor(line.words[0])
    fills = [
        lambda message_id, place=place, left=left: place.fill(message_id, left)
        for place, left in ids
    ]
    values: dict[str, Any] = {
        "consumer_id": actor.number,
        "ack_type": pb.CommandAck.AckType.Value(kind),
        "message_id": fills,
    }
    if options.flag("receipt", True):
        await stage.ask(actor, Command.ACK, **values)
    else:
        actor.link.tell(Command.ACK, **values)


async def redeliver(stage: Stage, line: Line, options: Options) -> None:
    name, *words = line.words
    fills = [stage.messages.place(word).fill for word in words]
    _tell(
        stage.actor(name),
        Command.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        message_ids=fills,
        **options.numbers(consumer_epoch="epoch"),
    )


async def seek(stage: Stage, line: Line, options: Options) -> None:
    """To a message, a place, or ``time=``: a time of the script, or of a message."""
    name, *words = line.words
    if time := options.text("time"):
        published = stage.messages.published_ms.get(time)
        assert stage.began_ms is not None
        target = published or stage.began_ms + int(seconds(time) * 1000)
        where: dict[str, Any] = {"message_publish_time": target}
    else:
        where = {"message_id": _beginning(stage, words[0], options)} if words else {}
    actor = stage.actor(name)
    await stage.ask(actor, Command.SEEK, consumer_id=actor.number, **where)


def _beginning(stage: Stage, word: str, options: Options) -> Callable[[pb.MessageIdData], None]:
    """Java's client names what is left of the batch, others only the entry."""
    place, left = stage.messages.from_on(word)
    return partial(place.fill, ack_set=left if options.flag("exact") else 0)


async def unsubscribe(stage: Stage, line: Line, options: Options) -> None:
    actor = stage.actor(line.words[0])
    force = options.flag("force")
    await stage.ask(actor, Command.UNSUBSCRIBE, consumer_id=actor.number, force=force)


async def last(stage: Stage, line: Line, options: Options) -> None:
    actor = stage.actor(line.words[0])
    await stage.ask(actor, Command.GET_LAST_MESSAGE_ID, consumer_id=actor.number)


async def stats(stage: Stage, line: Line, options: Options) -> None:
    actor = stage.actor(line.words[0])
    await stage.ask(actor, Command.CONSUMER_STATS, consumer_id=actor.number)


def _key_shared(options: Options) -> Callable[[pb.KeySharedMeta], None]:
    ranges = [tuple(map(int, one.split("-"))) for one in options.text("ranges").split(",") if one]
    out_of_order = options.flag("out-of-order")

    def fill(meta: pb.KeySharedMeta) -> None:
        meta.keySharedMode = pb.KeySharedMode.STICKY if ranges else pb.KeySharedMode.AUTO_SPLIT
        meta.allowOutOfOrderDelivery = out_of_order
        for start, end in ranges:
            meta.hashRanges.add(start=start, end=end)

    return fill


COMMANDS = {
    "subscribe": subscribe,
    "flow": flow,
    "ack": ack,
    "ack-up-to": ack_up_to,
    "redeliver": redeliver,
    "seek": seek,
    "unsubscribe": unsubscribe,
    "last": last,
    "stats": stats,
}
