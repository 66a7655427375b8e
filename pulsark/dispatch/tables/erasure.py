"""Erasing messages of a topic: from its table, its compacted form, the journal and memory.

The table's broker does it, with the help of the partitions' owners (``erasing_here``).

The one exception to "one payload for an id, for ever". Entries keep their ids; what is left of
them is decided in ``storage.managed_ledger.erasure``. Everything is sealed first, so that the
table has all there is; then the files with messages to be erased are written anew, and one attach
puts them in the place of the old ones. That is the moment of truth; a crash before it changes
nothing, and after it consumers find the holes by themselves. ``finish`` sees to what still has the
bytes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pulsark.dispatch.model.entry import stored_entry
from pulsark.dispatch.model.erased_entries import ack_of
from pulsark.dispatch.tables.erasing_here import ack_to_json, ids_to_json, prepared_from_json
from pulsark.errors import PulsarkError, StorageError
from pulsark.runtime import run_in_worker
from pulsark.storage.managed_ledger.erasure import ErasedIds, Indexes, count, without
from pulsark.storage.table.files.record import RowChange
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )

    from pulsark.config.settings import Settings
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.dispatch.tables.sealing import Sealing
    from pulsark.runtime import Runtime
    from pulsark.storage.cursor.cursor import Ack
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.table.files.seal_range import SealRange
    from pulsark.storage.table.process.process import Entries
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

FILES_A_TIME = 50
"""Files that one attach replaces."""

ATTEMPTS = 10
"""How often the compacted form of partitions that move meanwhile is looked at once more."""

TOLD_BYTES = 256 << 10
"""About so much of what was erased is told in one call."""


@dataclass(frozen=True, slots=True)
class Erased:
    """What one call did. ``missing`` ids are of ledgers that the topic does not have (any more),
    nor had its compacted form them."""

    ids: int
    entries: int
    files: int
    missing: int


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Where bytes of erased messages may still be. The files of older versions of the table may
    be read until ``until_ms``, and are deleted when the table is tidied after it."""

    old_files: int
    until_ms: int
    deleted_files: int
    journal_segments: int
    consumers: int
    """Connected ones; what they have received is theirs."""
    roots_away: tuple[str, ...]
    """Storage roots that could not be reached: they keep their files until they are back."""
    bookies_away: tuple[str, ...]
    """Bookies that could not be told: their journals keep the bytes, which are not read any more,
    until they are back."""


class Erasure:
    """Erases messages of topics whose tables are this broker's."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        ledgers: LedgerManager,
        sealing: Sealing,
        policies_of: Callable[[TopicName], Awaitable[TopicPolicies]],
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._ledgers = ledgers
        self._sealing = sealing
        self._everywhere = sealing.everywhere
        self._policies_of = policies_of
        self._erasing: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()

    async def erase(self, base: TopicName, ids: ErasedIds) -> Erased:
        """Erase messages of a topic.

        Nothing has happened, or part of it, if this raises ``PulsarkError``; done again it does
        what is left.
        """
        one_at_a_time = self._erasing.get(base)
        if one_at_a_time is None:
            one_at_a_time = self._erasing[base] = asyncio.Lock()
        async with one_at_a_time:
            held = await self._begin(base, await self._everywhere.partitions(base), ids)
            try:
                erased = await self._rewrite(base, ids, held)
            finally:
                moved = await self._end(base, held)
            # Where a partition was loaded anew, a compaction may have read what was not yet erased.
            for _ in range(ATTEMPTS):
                if not moved:
                    return erased
                held = await self._begin(base, moved, ids)
                moved = await self._end(base, held)
        raise StorageError(f"partitions of {base} move again and again; erase it once more")

    async def _begin(self, base: TopicName, partitions: Sequence[int], ids: ErasedIds) -> _Held:
        """Have partitions sealed and held by their owners."""
        places = await self._everywhere.places(base, partitions)
        held = _Held({}, {}, set())
        held.places.update(
            (broker_id, (f"{self._runtime.rng.getrandbits(128):032x}", numbers))
            for broker_id, numbers in places.items()
        )

        async def begin(broker_id: str, token: str, numbers: Sequence[int]) -> None:
            what = {
                "do": "beginErasure",
                "partitions": numbers,
                "asker": self._sealing.far.process,
                "token": token,
                "ids": ids_to_json(ids),
            }
            done = prepared_from_json(await self._everywhere.do(broker_id, base, what))
            held.compacted.update(done.compacted)
            held.listed.update(done.listed)

        begun = await asyncio.gather(
            *(begin(broker_id, *place) for broker_id, place in held.places.items()),
            return_exceptions=True,
        )
        failed = next((one for one in begun if isinstance(one, BaseException)), None)
        if failed is not None:
            await self._end(base, held)
            raise failed
        return held

    async def _end(self, base: TopicName, held: _Held) -> list[int]:
        """Have all let go; the partitions that were not held until now."""

        async def end(broker_id: str, token: str, numbers: Sequence[int]) -> Sequence[int]:
            try:
                what = {"do": "endErasure", "token": token}
                done = await self._everywhere.do(broker_id, base, what)
            except PulsarkError as error:
                log.info("%s: the broker %s does not answer: %s", base, broker_id, error)
                return numbers
            return [] if done["lasted"] else numbers

        found = await asyncio.gather(*(end(who, *place) for who, place in held.places.items()))
        return [number for some in found for number in some]

    async def _rewrite(self, base: TopicName, ids: ErasedIds, held: _Held) -> Erased:
        """Take messages out of the table. It is the moment of truth."""
        target = (await self._policies_of(base)).sealing.target_file_bytes
        worker = self._runtime.new_worker("erasure")
        try:
            async with self._sealing.topic_tables.exclusively(base):
                rewriting = _Rewriting(
                    self._sealing, base, target, held, partial(run_in_worker, worker)
                )
                for ledger_id in sorted(ids):
                    acks = await rewriting.ledger(ledger_id, ids[ledger_id])
                    await self._tell(base, held, held.listed.get(ledger_id), acks)
            return Erased(*count(ids), rewriting.files, rewriting.missing)
        finally:
            worker.end()

    async def _tell(
        self, base: TopicName, held: _Held, partition: int | None, acks: Sequence[Ack]
    ) -> None:
        """Let the owner of a partition know what nobody waits for any more."""
        for broker_id, (token, numbers) in held.places.items():
            if partition not in numbers:
                continue
            for some in _pieces(acks):
                what = {"do": "tellErased", "token": token, "acks": some}
                try:
                    await self._everywhere.do(broker_id, base, what)
                except PulsarkError as error:  # consumers find the holes by themselves
                    log.info("%s: the broker %s does not answer: %s", base, broker_id, error)
                    return

    async def finish(self, base: TopicName, vacuum_hours: float | None) -> Leftovers:
        """Get rid of what is not part of the topic any more: caches, journal segments, old files.

        The embedded metadata store forgets by itself the keys that its table records had.

        ``vacuum_hours`` is for how long readers of older versions are spared, by default as long as
        ``tableVacuumRetentionHours`` says.
        """
        partitions = await self._everywhere.partitions(base)
        parts = await self._everywhere.all(base, partitions, {"do": "forgetContent"})
        await self._sealing.tables.forget_content()
        segments, bookies_away = await self._ledgers.recycle()
        hours = self._settings.tableVacuumRetentionHours if vacuum_hours is None else vacuum_hours
        retention_ms = int(hours * 3_600_000)
        deleted = 0
        async with self._sealing.topic_tables.exclusively(base):
            for sealed in await self._sealing.tables.ledgers(base):
                before_ms = self._runtime.sure_clock.now_ms() - retention_ms + 1
                if any(file.time_ms < before_ms for file in sealed.left):
                    table = await self._sealing.tables.open(base, await self._table_id(base))
                    deleted += await table.vacuum(sealed.ledger_id, before_ms)
            left = [
                file for sealed in await self._sealing.tables.ledgers(base) for file in sealed.left
            ]
        until = max((file.time_ms for file in left), default=0)
        record = await self._sealing.tables.record(base)
        return Leftovers(
            len(left),
            until + self._settings.tableVacuumRetentionHours * 3_600_000 if left else 0,
            deleted,
            segments,
            sum(part["consumers"] for part in parts),
            await self._sealing.tables.roots.away(record)
            if record is not None and record.attached
            else (),
            tuple(bookies_away),
        )

    async def _table_id(self, base: TopicName) -> str:
        found = await self._sealing.topic_tables.id_of(base)
        if found is None:
            raise StorageError(f"there is no topic {base}")
        return found


@dataclass(frozen=True, slots=True)
class _Held:
    """Partitions that their owners hold."""

    places: dict[str, tuple[str, Sequence[int]]]
    """By broker the token of its hold, and the partitions."""
    listed: dict[int, int]
    """Ledgers with messages that are to be erased, and their partitions."""
    compacted: set[Position]
    """Entries that compacted forms had: they may have been the only places."""


class _Rewriting:
    """Writes files anew without the messages that are to be erased."""

    def __init__(
        self,
        sealing: Sealing,
        base: TopicName,
        target_bytes: int,
        held: _Held,
        in_worker: partial[Any],
    ) -> None:
        self.files = 0
        self.missing = 0
        self._sealing = sealing
        self._base = base
        self._target_bytes = target_bytes
        self._held = held
        self._in_worker = in_worker

    async def ledger(self, ledger_id: int, wanted: Mapping[int, Indexes]) -> list[Ack]:
        """Returns what that means for cursors."""
        acks: list[Ack] = []
        if ledger_id not in self._held.listed:
            nowhere = {
                entry_id: indexes
                for entry_id, indexes in wanted.items()
                if Position(ledger_id, entry_id) not in self._held.compacted
            }
            self.missing += count({ledger_id: nowhere})[0]
            return acks
        tables, base = self._sealing.tables, self._base
        table_id = await self._sealing.topic_tables.id_of(base)
        if table_id is None:
            raise StorageError(f"there is no topic {base}")
        # What an owner before decided is done first: it may have replaced the same files.
        await tables.open(base, table_id)
        sealed = await tables.sealed(base, ledger_id)
        if sealed is None or sealed.through < max(wanted):
            raise StorageError(
                f"entry {ledger_id}:{max(wanted)} is not in the table yet; try again"
            )
        files = [
            file
            for file in sealed.files
            if any(file.first_entry_id <= i <= file.last_entry_id for i in wanted)
        ]
        for start in range(0, len(files), FILES_A_TIME):
            part = files[start : start + FILES_A_TIME]
            found: list[Ack] = []
            table = await tables.open(base, table_id)
            entries = partial(self._entries, wanted, found)
            await table.rewrite(sealed, part, entries, self._target_bytes, RowChange.ERASE)
            self.files += len(part)
            acks += found
        return acks

    async def _entries(
        self, wanted: Mapping[int, Indexes], acks: list[Ack], part: SealRange
    ) -> AsyncIterator[Entries]:
        async for piece in self._sealing.source.entries(part):
            if any(entry_id in wanted for entry_id, _ in piece):
                yield await self._in_worker(partial(_erase, part.ledger_id, piece, wanted, acks))
            else:
                yield piece


def _erase(
    ledger_id: int, piece: Entries, wanted: Mapping[int, Indexes], acks: list[Ack]
) -> Entries:
    """The entries without what is to be erased; ``acks`` gets what that means for cursors."""
    left: Entries = []
    for entry_id, entry in piece:
        if entry_id in wanted:
            entry = without(entry, wanted[entry_id])
            acks.append(ack_of(stored_entry(Position(ledger_id, entry_id), entry)))
        left.append((entry_id, entry))
    return left


def _pieces(acks: Sequence[Ack]) -> Iterator[list[Any]]:
    """As brokers tell each other, so much at a time as one call carries."""
    some: list[Any] = []
    size = 0
    for ack in acks:
        line = ack_to_json(ack)
        size += 64 + 20 * len(line[2] or ())
        some.append(line)
        if size >= TOLD_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
