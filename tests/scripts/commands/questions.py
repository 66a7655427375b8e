"""What anybody may ask about topics."""

from __future__ import annotations

from pulsark.wire import pulsar_pb2 as pb
from tests.scripts.options import Options
from tests.scripts.script import Line
from tests.scripts.stage import Stage
from tests.support.broker_clients import Command


async def lookup(stage: Stage, line: Line, options: Options) -> None:
    await stage.ask(stage.anybody(), Command.LOOKUP, topic=line.words[0])


async def partitions(stage: Stage, line: Line, options: Options) -> None:
    create = options.flag("create", True)
    await stage.ask(
        stage.anybody(),
        Command.PARTITIONED_METADATA,
        topic=line.words[0],
        metadata_auto_creation_enabled=create,
    )


async def topics(stage: Stage, line: Line, options: Options) -> None:
    fields = {"topics_pattern": pattern} if (pattern := options.text("pattern")) else {}
    await stage.ask(
        stage.anybody(),
        Command.GET_TOPICS_OF_NAMESPACE,
        namespace=line.words[0],
        mode=pb.CommandGetTopicsOfNamespace.Mode.Value(options.text("mode", "PERSISTENT")),
        **fields,
    )


async def watch(stage: Stage, line: Line, options: Options) -> None:
    namespace, pattern = line.words
    await stage.ask(
        stage.anybody(),
        Command.WATCH_TOPIC_LIST,
        watcher_id=1,
        namespace=namespace,
        topics_pattern=pattern,
    )


COMMANDS = {"lookup": lookup, "partitions": partitions, "topics": topics, "watch": watch}
