"""What clients of Pulsar 5 do: they look layouts up, and share the segments of a topic."""

from __future__ import annotations

from pulsark.wire import pulsar_pb2 as pb
from tests.scripts.options import Options
from tests.scripts.script import Line
from tests.scripts.stage import Stage, topic_name
from tests.support.broker_clients import Command


async def layout(stage: Stage, line: Line, options: Options) -> None:
    stage.anybody().link.tell(Command.SCALABLE_TOPIC_LOOKUP, session_id=1, topic=line.words[0])


async def join(stage: Stage, line: Line, options: Options) -> None:
    actor, line, options = stage.opened(line, options, "consumer")
    _, subscription = line.words
    await stage.ask(
        actor,
        Command.SCALABLE_TOPIC_SUBSCRIBE,
        topic=topic_name(options.text("topic")),
        subscription=subscription,
        consumer_name=actor.name,
        consumer_id=actor.number,
        consumer_type=pb.ScalableConsumerType.Value(options.text("type", "STREAM")),
    )


async def leave(stage: Stage, line: Line, options: Options) -> None:
    actor = stage.actor(line.words[0])
    await stage.ask(actor, Command.SCALABLE_TOPIC_UNSUBSCRIBE, consumer_id=actor.number)


COMMANDS = {"layout": layout, "join": join, "leave": leave}
