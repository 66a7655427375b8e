"""Lists of full names of topics."""

from __future__ import annotations

from pulsark.dispatch.turns import in_turns
from pulsark.limits import TOPIC_NAMES_PER_TURN


def is_system(topic: str) -> bool:
    """Whether a full name is one of the system's own topics, which clients are not shown."""
    return topic.rpartition("/")[2].startswith("__")


async def in_order(names: list[str], *, include_system: bool) -> list[str]:
    """Each of these names once, sorted. They are nearly in order already."""
    names = sorted(names)
    found: list[str] = []
    last = ""
    async for name in in_turns(names, TOPIC_NAMES_PER_TURN):
        if name != last and (include_system or not is_system(name)):
            found.append(name)
        last = name
    return found
