"""What a broker does in its partitions while messages are erased from their table.

The table's broker erases (``erasure``). It has each owner seal all that there is, and take the
messages out of the compacted form. From then on until the table does not have them any more no
compaction may run: it could have read them before. So the owner *holds* its partitions. It lets go
when it is told to, when the process that asked is gone, or when a later erasure comes; then it
forgets what it has in memory. Whoever ends a hold hears whether it lasted: if a partition was
loaded anew meanwhile, its compacted form is looked at once more.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pulsark.storage.managed_ledger.erasure import erased_ids
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.metadata.changes import Check
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.storage.cursor.cursor import Ack
    from pulsark.storage.managed_ledger.erasure import ErasedIds
    from pulsark.wire.topic_name import TopicName

HELD_SECONDS_MAX = 3600.0
"""Longest time without compaction."""

LOOK_SECONDS = 1.0
"""So often it is looked whether the process that asked is still there."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an owner has done."""

    compacted: Collection[Position]
    """Entries that were in the compacted form: it may have been the only place."""
    listed: Iterable[tuple[int, int]]
    """Ledgers of those with messages to be erased that partitions have, with the partition."""


@dataclass(slots=True)
class _Held:
    base: TopicName
    topics: Sequence[Topic]
    claims: Collection[Check | None]
    """Of their bundles."""
    compactors: AsyncExitStack
    over: asyncio.Event = field(default_factory=asyncio.Event)
    watch: asyncio.Task[None] | None = None

    def lasts(self, loaded: Topics) -> bool:
        """Whether no partition was loaded anew, or went to another broker."""
        return all(
            not topic.closed and loaded.get_loaded(topic.name) is topic for topic in self.topics
        )


class ErasingHere:
    """The owner's side."""

    def __init__(
        self,
        clock: Clock,
        metadata: MetadataStore,
        ownership: Ownership,
        topics: Topics,
        sealing: Sealing,
        is_live: Callable[[str], bool],
    ) -> None:
        """``is_live``: whether a process is there, as far as is known."""
        self._clock = clock
        self._metadata = metadata
        self._ownership = ownership
        self._topics = topics
        self._sealing = sealing
        self._is_live = is_live
        self._held: dict[str, _Held] = {}

    async def begin(
        self, base: TopicName, names: Sequence[TopicName], asker: str, token: str, ids: ErasedIds
    ) -> Prepared:
        """Seal all of these partitions, and hold them; ``asker`` is the process that asks."""
        for other, former in list(self._held.items()):
            if former.base == base:  # a table has one erasure at a time: this one is over
                await self.end(other)
        await self._sealing.seal(base, await self._loaded(names), everything=True)
        topics = await self._loaded(names)
        compacted: set[Position] = set()
        async with AsyncExitStack() as stack:
            for topic in topics:
                await stack.enter_async_context(topic.compactor.stopped())
                # First, because what is found again after a crash is found in the table.
                compacted |= await topic.compactor.erase(ids)
            claims = {await self._claim_of(topic) for topic in topics}
            held = self._held[token] = _Held(base, topics, claims, stack.pop_all())
        held.watch = asyncio.create_task(self._watch(token, held, asker))
        return Prepared(
            {place for place in compacted if place.entry_id in ids.get(place.ledger_id, ())},
            [
                (ledger_id, topic.name.partition)
                for topic in topics
                for ledger_id in ids
                if topic.ledger.ledger(ledger_id) is not None
            ],
        )

    def tell(self, token: str, acks: Sequence[Ack]) -> None:
        """The table does not have these messages any more: nobody waits for them."""
        held = self._held.get(token)
        for topic in () if held is None else held.topics:
            mine = [ack for ack in acks if topic.ledger.ledger(ack[0].ledger_id) is not None]
            _forget_content(topic)
            for subscription in topic.subscriptions.values() if mine else ():
                subscription.acks.erased(mine)

    async def end(self, token: str) -> bool:
        """Let go; whether all partitions were held until now."""
        held = self._held.pop(token, None)
        if held is None:
            return False
        for topic in held.topics:
            _forget_content(topic)
        lasted = held.lasts(self._topics)
        await held.compactors.aclose()
        held.over.set()
        return lasted and await self._are_ours(held)

    async def forget_content(self, names: Sequence[TopicName]) -> int:
        """Keep no messages of these partitions in memory; how many consumers have had some."""
        topics = await self._loaded(names)
        for topic in topics:
            _forget_content(topic)
        await self._sealing.tables.forget_content()
        return sum(s.type.consumer_count for topic in topics for s in topic.subscriptions.values())

    async def close(self) -> None:
        """Whoever has the partitions next begins anew."""
        for token in list(self._held):
            await self.end(token)

    async def _watch(self, token: str, held: _Held, asker: str) -> None:
        until = self._clock.monotonic() + HELD_SECONDS_MAX
        while (
            self._is_live(asker) and held.lasts(self._topics) and (self._clock.monotonic() < until)
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await held.over.wait()
                    return
        await self.end(token)

    async def _claim_of(self, topic: Topic) -> Check | None:
        return self._ownership.guard_of(await self._ownership.bundle_named(topic.name))

    async def _are_ours(self, held: _Held) -> bool:
        """Whether no other broker has claimed them, of which this one may not have heard."""
        for claim in held.claims:
            found = None if claim is None else await self._metadata.get(claim.path)
            if claim is None or found is None or found.version != claim.expected_version:
                return False
        return True

    async def _loaded(self, names: Sequence[TopicName]) -> list[Topic]:
        return [await self._topics.load(name, create=name.partition >= 0) for name in names]


def _forget_content(topic: Topic) -> None:
    """Keep none of a topic's messages in memory."""
    topic.entries.forget()
    for subscription in topic.subscriptions.values():
        subscription.dispatcher.forget_content()


# -- what brokers tell each other ---


def ids_to_json(ids: ErasedIds) -> list[Any]:
    """Ids that are to be erased."""
    return [
        [
            ledger_id,
            [[i, None if indexes is None else sorted(indexes)] for i, indexes in entries.items()],
        ]
        for ledger_id, entries in ids.items()
    ]


def ids_from_json(told: list[Any]) -> ErasedIds:
    """The inverse."""
    return erased_ids(
        (ledger_id, entry_id, index)
        for ledger_id, entries in told
        for entry_id, indexes in entries
        for index in ((-1,) if indexes is None else indexes)
    )


def prepared_to_json(done: Prepared) -> dict[str, Any]:
    """What an owner has done."""
    return {"compacted": sorted(map(list, done.compacted)), "listed": list(map(list, done.listed))}


def prepared_from_json(told: dict[str, Any]) -> Prepared:
    """The inverse."""
    return Prepared(
        {Position(ledger_id, entry_id) for ledger_id, entry_id in told["compacted"]},
        [(ledger_id, partition) for ledger_id, partition in told["listed"]],
    )


def ack_to_json(ack: Ack) -> list[Any]:
    """An acknowledgement."""
    position, words, messages = ack
    return [*position, words, messages]


def ack_from_json(told: list[Any]) -> Ack:
    """The inverse."""
    ledger_id, entry_id, words, messages = told
    return Position(ledger_id, entry_id), words, messages
