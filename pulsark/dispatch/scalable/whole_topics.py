"""The topics of a namespace as clients of scalable topics see them: a partitioned one is one topic.

Such clients name no pattern. They may ask for topics that have certain properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.scalable.limits import PROPERTY_FILTERS_CHARS_MAX
from pulsark.dispatch.topics.topic_names import in_order
from pulsark.errors import ClientError, ServerError
from pulsark.limits import TOPIC_NAMES_PER_TURN, TOPIC_PROPERTIES_MAX
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.resources import is_system_topic
from pulsark.storage.managed_ledger.record import read_record
from pulsark.wire.topic_name import TopicName, without_partition

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from pulsark.dispatch.topics.topic_lists import Change, TopicList
    from pulsark.metadata.store import MetadataStore
    from pulsark.metadata.topic_resources import PartitionedTopics


class WholeTopics:
    """Topics that have all the given properties; without any, all topics."""

    def __init__(
        self,
        wanted: Iterable[tuple[str, str]],
        partitioned: PartitionedTopics,
        metadata: MetadataStore,
    ) -> None:
        """Raise ``ClientError`` for more properties than a topic can have."""
        self._wanted = frozenset(wanted)
        if len(self._wanted) > TOPIC_PROPERTIES_MAX:
            raise ClientError(
                ServerError.NotAllowedError,
                f"property_filters has {len(self._wanted)} properties, and a topic has up to "
                f"{TOPIC_PROPERTIES_MAX}",
            )
        chars = sum(len(key) + len(value) for key, value in self._wanted)
        if chars > PROPERTY_FILTERS_CHARS_MAX:
            raise ClientError(
                ServerError.NotAllowedError,
                f"property_filters has {chars} characters, and may have up to "
                f"{PROPERTY_FILTERS_CHARS_MAX}",
            )
        self._partitioned = partitioned
        self._metadata = metadata

    @property
    def key(self) -> Hashable:
        """The properties."""
        return self._wanted

    @property
    def reads_records(self) -> bool:
        """Properties are in the records of topics."""
        return bool(self._wanted)

    async def find(self, known: TopicList) -> list[str]:
        """In turns."""
        found: list[str] = []
        bases: set[str] = set()
        async for topic in in_turns(known.topics, TOPIC_NAMES_PER_TURN):
            base = _whole(topic)
            if base != topic:
                bases.add(base)
            elif not self._wanted:
                found.append(topic)
            else:
                bases.add(topic)
        more = [name async for name in in_turns(bases) if await self._takes(name, known)]
        return await in_order(found + more, include_system=False) if more else found

    async def changes(self, found: TopicList, change: Change) -> tuple[list[str], list[str]]:
        """Changes of whole topics: another partition of a topic is not a change."""
        written: Iterable[str] = change.looked_at
        if not self._wanted:
            written = [*change.new, *change.deleted]
        names = {_whole(topic) async for topic in in_turns(list(written), TOPIC_NAMES_PER_TURN)}
        more: list[str] = []
        less: list[str] = []
        async for name in in_turns(sorted(names)):
            there = await self._takes(name, change.known)
            if there != (name in found):
                (more if there else less).append(name)
        return more, less

    async def _takes(self, name: str, known: TopicList) -> bool:
        """Whether a topic is to be shown.

        A partition that is there by itself, of a topic that is not, is no topic of such clients.
        """
        if is_system_topic(name):
            return False
        if not self._wanted and name in known:
            return True
        try:
            topic = TopicName.parse(name)
        except ClientError:
            return False  # what stands before the suffix of a partition need not be a name
        partitioned = await self._partitioned.get(topic)
        if partitioned is not None:
            return self._fits(partitioned.properties)
        if name not in known:
            return False
        record = await read_record(managed_ledger_path(topic), self._metadata)
        return record is not None and self._fits(record.properties)

    def _fits(self, properties: Mapping[str, str]) -> bool:
        return self._wanted <= properties.items()


def _whole(topic: str) -> str:
    """The topic that a partition is one of; else the topic itself."""
    base = without_partition(topic)
    return topic if base.endswith("/") else base  # the suffix may be all that its name has
