"""What is kept with a cursor beside positions: a subscription's properties, and one flag.

The flag, whether the subscription's state is replicated between clusters, is a property of the
cursor under Pulsar's name for it. No client sees it as a property, or can set it as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.runtime import new_done
from pulsark.security.effects import Changed, report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.wire.topic_name import TopicName

_REPLICATED = "pulsar.replicated.subscription"


def cursor_properties(given: Mapping[str, str], *, replicated: bool) -> dict[str, str]:
    """The properties of a cursor, from what a client gave and the flag."""
    return given_properties(given) | ({_REPLICATED: "1"} if replicated else {})


def given_properties(stored: Mapping[str, str]) -> dict[str, str]:
    """What a client gave, from the properties of a cursor."""
    return {key: value for key, value in stored.items() if key != _REPLICATED}


class CursorProperties:
    """The properties of a subscription with a cursor."""

    __slots__ = ("_cursor", "_topic")

    def __init__(self, topic: TopicName, cursor: Cursor) -> None:
        self._topic = topic
        self._cursor = cursor

    @property
    def given(self) -> Mapping[str, str]:
        """What a client gave."""
        return given_properties(self._cursor.properties)

    @property
    def replicated(self) -> bool:
        """The flag."""
        return _REPLICATED in self._cursor.properties

    async def replace(self, given: Mapping[str, str]) -> None:
        """Replace what a client gave, durably."""
        await self._keep(cursor_properties(given, replicated=self.replicated))

    async def set_replicated(self, replicated: bool) -> None:
        """Set the flag, durably."""
        if replicated != self.replicated:
            await self._keep(cursor_properties(self.given, replicated=replicated))

    async def _keep(self, properties: Mapping[str, str]) -> None:
        durable, done = new_done()
        self._cursor.set_properties(properties, done)
        report(Changed.SUBSCRIPTION_CHANGED, self._topic, self._cursor.name)
        await durable


@dataclass(frozen=True, slots=True)
class UnstoredProperties:
    """The properties of a subscription without a cursor, which end with it."""

    given: Mapping[str, str]
    replicated: bool = False

    async def set_replicated(self, replicated: bool) -> None:
        """Ignored: there is no state to replicate."""
