"""What an administrator does, and what happens to the machine."""

from __future__ import annotations

from pulsark.wire.topic_name import TopicName
from tests.scripts.options import Options
from tests.scripts.script import Line, ScriptError
from tests.scripts.stage import Stage


def _name(line: Line) -> TopicName:
    return TopicName.parse(line.words[0] if line.words else "t")


async def create(stage: Stage, line: Line, options: Options) -> None:
    topics = stage.process.broker.creation
    await topics.create_partitioned_topic(_name(line), options.number("partitions"), {})


async def namespace(stage: Stage, line: Line, options: Options) -> None:
    await stage.process.broker.resources.namespaces.create(line.words[0])


async def disk(stage: Stage, line: Line, options: Options) -> None:
    if line.words == ("full",):
        stage.machine.fill_disk()
    elif line.words == ("free",):
        stage.machine.disk.capacity = None
    else:
        raise ScriptError("A disk is full or free")


async def delete(stage: Stage, line: Line, options: Options) -> None:
    force = options.flag("force")
    await stage.process.broker.deletion.delete_topic(_name(line), force=force)


async def unload(stage: Stage, line: Line, options: Options) -> None:
    await stage.process.broker.topics.unload(_name(line))


async def terminate(stage: Stage, line: Line, options: Options) -> None:
    await (await stage.process.broker.topics.load(_name(line))).termination.terminate()


async def compact(stage: Stage, line: Line, options: Options) -> None:
    await (await stage.process.broker.topics.load(_name(line))).compactor.run()


async def trim(stage: Stage, line: Line, options: Options) -> None:
    await (await stage.process.broker.topics.load(_name(line))).retention.trim()


COMMANDS = {
    "create": create,
    "namespace": namespace,
    "delete": delete,
    "unload": unload,
    "terminate": terminate,
    "compact": compact,
    "trim": trim,
    "disk": disk,
}
