"""What all clients do."""

from __future__ import annotations

from tests.scripts.options import Options, seconds
from tests.scripts.script import Line
from tests.scripts.stage import Stage
from tests.support.broker_clients import Command


async def close(stage: Stage, line: Line, options: Options) -> None:
    actor = stage.actor(line.words[0])
    if actor.link.consumers.get(actor.number) is actor:
        await stage.ask(actor, Command.CLOSE_CONSUMER, consumer_id=actor.number)
    else:
        await stage.ask(actor, Command.CLOSE_PRODUCER, producer_id=actor.number)


async def disconnect(stage: Stage, line: Line, options: Options) -> None:
    stage.actor(line.words[0]).link.hang_up()


async def freeze(stage: Stage, line: Line, options: Options) -> None:
    stage.actor(line.words[0]).link.freeze()


async def wait(stage: Stage, line: Line, options: Options) -> None:
    await stage.moment(seconds(line.words[0]))


COMMANDS = {"close": close, "disconnect": disconnect, "freeze": freeze, "wait": wait}
