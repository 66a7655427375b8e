"""Ledgers that a table has and its topic does not list: the metadata store went back.

A ledger of the table was in the list of its topic before. So it is listed again, in its place by
its id: consumers get what the table has of it, and what bookies have behind that.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pulsark.errors import BadVersionError, PulsarkError, StorageError
from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.storage.managed_ledger.record import (
    ManagedLedgerRecord,
    TopicState,
    claim_or_create,
    read_ledgers,
    read_runs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.dispatch.topics.guarded_storage import GuardedStorage
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Runtime
    from pulsark.storage.ledger.manager import LedgerManager
    from pulsark.storage.table.files.record import SealedLedger
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

ATTEMPTS = 20
"""How often a partition's record is changed that clients have loaded meanwhile."""


class TableLedger(NamedTuple):
    """A ledger, as far as its table has it."""

    ledger_id: int
    entries: int
    size: int

    @classmethod
    def of(cls, sealed: SealedLedger) -> TableLedger:
        """What a list of files says."""
        size = sum(file.size for file in sealed.files)
        return cls(sealed.ledger_id, sealed.through + 1, size)


class Rejoining:
    """Lists ledgers again that only the table of their topic knows."""

    def __init__(self, runtime: Runtime, storage: GuardedStorage, topics: Topics) -> None:
        self._runtime = runtime
        self._storage = storage
        self._topics = topics

    async def rejoin(self, name: TopicName, ledgers: Sequence[TableLedger]) -> set[int]:
        """Let a partition list ledgers; returns those of them that it lists now.

        If it does not list all of them, it is unloaded; clients load it again.
        """
        path = managed_ledger_path(name)
        for _ in range(ATTEMPTS):
            metadata, manager = await self._storage.of(name)
            found = await read_ledgers(path, metadata)
            if found is None and name.partition < 0:
                return set()
            if found is not None:
                known, new = _told_apart(*found, ledgers)
                if not new:
                    return known
            await self._topics.unload(name)
            record, version = await claim_or_create(path, metadata, self._runtime, None)
            folded = await read_runs(record, metadata)
            if record.state is TopicState.DELETING or folded is None:
                continue
            known, new = _told_apart(record, record.ledger_list(folded), ledgers)
            for ledger in new:
                record = record.with_ledger(await self._taken_up(manager, path, ledger))
            try:
                await metadata.put(path, record.encode(), version)
            except BadVersionError:
                continue  # a broker has loaded it again
            for ledger in new:
                log.warning("%s lists ledger %d again, as its table does", name, ledger.ledger_id)
            if self._topics.is_loading(name):  # since before it was listed, maybe
                with suppress(PulsarkError):
                    await self._topics.load(name)
                await self._topics.unload(name)
            return known | {ledger.ledger_id for ledger in new}
        raise StorageError(f"{name} is loaded again and again: its ledgers cannot be listed now")

    async def _taken_up(self, manager: LedgerManager, path: str, ledger: TableLedger) -> LedgerInfo:
        found = await manager.take_up(ledger.ledger_id, path, ledger.entries, ledger.size)
        now = self._runtime.clock.now_ms()
        if not found.is_closed:
            return LedgerInfo(ledger.ledger_id, 0, 0, now, open=True)
        return LedgerInfo(ledger.ledger_id, found.last_entry_id + 1, found.length, now)


def _told_apart(
    record: ManagedLedgerRecord, listed: LedgerList, ledgers: Sequence[TableLedger]
) -> tuple[set[int], list[TableLedger]]:
    """Ids of those that a topic lists, and those that it can list.

    It cannot list one that was trimmed, or that is among those that are folded.
    """
    pending = {info.ledger_id for info in record.pending}
    known = {i for i in (each.ledger_id for each in ledgers) if i in listed or i in pending}
    floor = max([record.trimmed.ledger_id, *(line.last_id for line in record.folded)])
    gone = {*known, *record.removing}
    return known, [
        each for each in ledgers if each.ledger_id > floor and each.ledger_id not in gone
    ]
