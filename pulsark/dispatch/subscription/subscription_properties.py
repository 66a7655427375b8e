"""What is kept with a cursor beside positions: a subscription's properties, and one flag.

The flag, whether the subscription's state is replicated between clusters, is a property of the
cursor under Pulsar's name for it. No client sees it as a property, or can set it as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.limits import SUBSCRIPTION_PROPERTIES_BYTES_MAX
from pulsark.runtime import new_done
from pulsark.security.effects import Changed, report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.config.settings import Settings
    from pulsark.storage.cursor.cursor import Cursor
    from pulsark.wire.topic_name import TopicName

_REPLICATED = "pulsar.replicated.subscription"


def cursor_properties(given: Mapping[str, str], *, replicated: bool) -> dict[str, str]:
    """The properties of a cursor, from what a client gave and the flag."""
    return given_properties(given) | ({_REPLICATED: "1"} if replicated else {})


def given_properties(stored: Mapping[str, str]) -> dict[str, str]:
    """What a client gave, from the properties of a cursor."""
    return {key: value for key, value in stored.items() if key != _REPLICATED}


def properties_bytes(properties: Mapping[str, str]) -> int:
    """Return the bytes of keys and values, in UTF-8."""
    return sum(len(text.encode()) for pair in properties.items() for text in pair)


class PropertyRoom:
    """The bytes that the subscriptions of one topic have for their properties."""

    def __init__(self, topic: TopicName, settings: Settings) -> None:
        self._topic = topic
        self._settings = settings
        self.used = 0

    def check(self, name: str, wanted: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Raise ``ClientError`` if a subscription may not change its properties to these."""
        size, had = properties_bytes(wanted), properties_bytes(before)
        if size <= had:
            return
        if size > SUBSCRIPTION_PROPERTIES_BYTES_MAX:
            raise ClientError(
                ServerError.NotAllowedError,
                f"The properties of subscription {name} have {size} bytes, and may have "
                f"{SUBSCRIPTION_PROPERTIES_BYTES_MAX}; make them shorter",
            )
        most = self._settings.subscriptionPropertiesMaxBytesPerTopic
        if 0 < most < self.used - had + size:
            raise ClientError(
                ServerError.NotAllowedError,
                f"The properties of the subscriptions of {self._topic} would have "
                f"{self.used - had + size} bytes with those of {name}, and may have {most}; "
                "shorten them, delete subscriptions, or raise "
                "subscriptionPropertiesMaxBytesPerTopic",
            )

    def change(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Count that properties were replaced."""
        self.used += properties_bytes(after) - properties_bytes(before)


class CursorProperties:
    """The properties of a subscription with a cursor."""

    __slots__ = ("_cursor", "_room", "_topic")

    def __init__(self, topic: TopicName, cursor: Cursor, room: PropertyRoom | None) -> None:
        self._topic = topic
        self._cursor = cursor
        self._room = room

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
        before = self._cursor.properties
        if self._room is not None:
            self._room.check(self._cursor.name, properties, before)
        durable, done = new_done()
        self._cursor.set_properties(properties, done)
        if self._room is not None:
            self._room.change(before, properties)
        report(Changed.SUBSCRIPTION_CHANGED, self._topic, self._cursor.name)
        await durable


@dataclass(frozen=True, slots=True)
class UnstoredProperties:
    """The properties of a subscription without a cursor, which end with it."""

    given: Mapping[str, str]
    replicated: bool = False

    async def set_replicated(self, replicated: bool) -> None:
        """Ignored: there is no state to replicate."""
