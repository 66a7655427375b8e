"""A managed ledger's record in the metadata store. ``docs/formats/ledger.md`` has the JSON.

The record makes ledgers part of a topic: the broker that changes it by compare-and-set owns
the topic.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.errors import BadVersionError, CorruptMetadataError
from pulsark.metadata.documents import check_version
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.storage.managed_ledger.compacted_ledger import CompactedTo
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.storage.managed_ledger.ledger_runs import FoldedLedgers, RunLine, decode_run
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pulsark.runtime import Runtime
    from pulsark.storage.ledger.metadata import LedgerMetadata

FORMAT_VERSION = 2
"""With folded runs; a record without any is of format 1, which earlier releases read."""


class TopicState(StrEnum):
    """What may still happen to a managed ledger."""

    OPEN = "OPEN"
    TERMINATED = "TERMINATED"
    """Nothing is appended any more; it can be read."""
    DELETING = "DELETING"
    """No client sees it any more; its ledgers are being removed."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerRecord:
    """The durable state of a managed ledger; also a read-only view of one that is not loaded.

    It does not know the entries of an open ledger, and shows 0.
    """

    topic_id: str
    """Chosen at creation and never used again: a topic created anew has another."""
    created_ms: int
    state: TopicState = TopicState.OPEN
    ledgers: tuple[LedgerInfo, ...] = ()
    trimmed: Position = EARLIEST
    """The last entry that was trimmed."""
    removing: tuple[int, ...] = ()
    """Ledgers that are no longer part of it, but perhaps still on bookies."""
    properties: Mapping[str, str] = field(default_factory=dict)
    topic_epoch: int | None = None
    """The epoch of the last exclusive producer; ``None`` if there never was one."""
    compacted: CompactedTo | None = None
    """Where the compacted form of the topic is, if there is one."""
    pending: tuple[LedgerInfo, ...] = ()
    """Reserved ledgers, behind all others. They exist if the topic's table has them."""
    folded: tuple[RunLine, ...] = ()
    """Runs of closed ledgers before ``ledgers``. Those up to ``trimmed`` are no part of them."""

    def ledger_list(self, folded: FoldedLedgers) -> LedgerList:
        """For arithmetic with positions; ``folded`` are its runs (``read_runs``)."""
        return LedgerList(self.ledgers, self.trimmed, folded)

    def with_folded(self, count: int, line: RunLine) -> ManagedLedgerRecord:
        """Replace the first ``count`` ledgers by a run."""
        return replace(self, ledgers=self.ledgers[count:], folded=(*self.folded, line))

    def with_joined(self, first: int, count: int, line: RunLine) -> ManagedLedgerRecord:
        """Replace ``count`` runs from the index ``first`` on by one."""
        folded = (*self.folded[:first], line, *self.folded[first + count :])
        return replace(self, folded=folded)

    def with_trimmed(self, victims: Sequence[LedgerInfo]) -> ManagedLedgerRecord:
        """Without its first ledgers, which are to be removed."""
        last = max([self.trimmed, *(_end(info) for info in victims if info.entries)])
        gone = {info.ledger_id for info in victims}
        folded = tuple(line for line in self.folded if line.last_id > last.ledger_id)
        return replace(self.without_ledgers(gone), folded=folded, trimmed=last)

    def with_ledger(self, info: LedgerInfo) -> ManagedLedgerRecord:
        """With one ledger added at the end, or replaced."""
        others = tuple(i for i in self.ledgers if i.ledger_id != info.ledger_id)
        return replace(self, ledgers=tuple(sorted((*others, info))))

    def with_closed(self, metadata: LedgerMetadata, now_ms: int) -> ManagedLedgerRecord:
        """With the final size of a ledger that was closed; one without entries goes."""
        if metadata.last_entry_id < 0:
            return self.without_ledgers({metadata.ledger_id})
        return self.with_ledger(
            LedgerInfo(metadata.ledger_id, metadata.last_entry_id + 1, metadata.length, now_ms)
        )

    def without_ledgers(self, ledger_ids: set[int]) -> ManagedLedgerRecord:
        """With ledgers taken out and marked for removal."""
        return replace(
            self,
            ledgers=tuple(i for i in self.ledgers if i.ledger_id not in ledger_ids),
            removing=tuple(sorted({*self.removing, *ledger_ids})),
        )

    def with_removing(self, ledger_ids: Collection[int]) -> ManagedLedgerRecord:
        """With ledgers to be removed that are no part of it."""
        return replace(self, removing=tuple(sorted({*self.removing, *ledger_ids})))

    def with_compacted(self, compacted: CompactedTo) -> ManagedLedgerRecord:
        """With another compacted form; that of before is to be removed."""
        removing = set(self.removing) - {compacted.ledger_id}
        if self.compacted is not None:
            removing.add(self.compacted.ledger_id)
        return replace(self, compacted=compacted, removing=tuple(sorted(removing)))

    def with_pending(self, infos: Sequence[LedgerInfo]) -> ManagedLedgerRecord:
        """With reserved ledgers."""
        return replace(self, pending=(*self.pending, *infos))

    def decided(self, existing: Collection[int]) -> ManagedLedgerRecord:
        """With no ledger reserved any more: these are part of it now, the others never will be."""
        joined = [info for info in self.pending if info.ledger_id in existing]
        never = {info.ledger_id for info in self.pending} - set(existing)
        return replace(
            self,
            ledgers=tuple(sorted((*self.ledgers, *joined))),
            removing=tuple(sorted({*self.removing, *never})),
            pending=(),
        )

    def encode(self) -> bytes:
        """The stored JSON."""
        document: dict[str, Any] = {
            "version": FORMAT_VERSION if self.folded else 1,
            "topicId": self.topic_id,
            "createdMs": self.created_ms,
            "state": self.state.value,
            "ledgers": [
                [i.ledger_id, None, None, i.timestamp_ms] if i.open else list(i[:4])
                for i in self.ledgers
            ],
            "trimmed": list(self.trimmed),
            "removing": list(self.removing),
            "properties": dict(self.properties),
        }
        if self.topic_epoch is not None:
            document["topicEpoch"] = self.topic_epoch
        if self.compacted is not None:
            document["compacted"] = [self.compacted.ledger_id, *self.compacted.horizon]
        if self.folded:
            document["folded"] = [[*line[:3], int(line.settled)] for line in self.folded]
        if self.pending:
            document["pending"] = [list(i[:4]) for i in self.pending]
        return json.dumps(document, separators=(",", ":")).encode()


def decode_record(path: str, value: bytes) -> ManagedLedgerRecord:
    """The inverse of ``encode``; raises ``MetadataError``."""
    try:
        document = json.loads(value)
        check_version(document, FORMAT_VERSION)
        return _from_document(document)
    except (KeyError, TypeError, ValueError) as e:
        raise CorruptMetadataError(f"the record {path} cannot be read: {e!r}") from e


async def read_runs(record: ManagedLedgerRecord, metadata: MetadataStore) -> FoldedLedgers | None:
    """The folded ledgers of a record; ``None`` if it is not the present one any more."""
    runs = []
    for line in record.folded:
        path = line.path(record.topic_id)
        found = await metadata.get(path)
        if found is None:
            return None
        runs.append(decode_run(path, found.value))
        await asyncio.sleep(0)  # a store in this process answers without a pause
    return FoldedLedgers(runs).behind(record.trimmed.ledger_id)


class StoredRecord(NamedTuple):
    """A record as it was read."""

    record: ManagedLedgerRecord
    value: bytes
    version: int


async def read_stored(path: str, metadata: MetadataStore) -> StoredRecord | None:
    """The record at a path, also that of a topic that is being deleted."""
    found = await metadata.get(path)
    if found is None:
        return None
    return StoredRecord(decode_record(path, found.value), found.value, found.version)


async def read_existing(path: str, metadata: MetadataStore) -> StoredRecord | None:
    """The record at a path; ``None`` also if the topic is being deleted."""
    found = await read_stored(path, metadata)
    return None if found is None or found.record.state is TopicState.DELETING else found


async def claim_or_create(
    path: str,
    metadata: MetadataStore,
    runtime: Runtime,
    properties: Mapping[str, str] | None,
    known: StoredRecord | None = None,
    *,
    at_once: bool = True,
) -> tuple[ManagedLedgerRecord, int]:
    """The record at a path and its version, made with a new topic id if there is none.

    An existing record is written anew: an earlier owner can then add no ledger to the topic. Unless
    ``at_once``, one with an open ledger is not: its recovery fences the earlier owner, and ends
    with a write that fails if that has changed the record since. ``known``: the record as it was
    not long ago.
    """
    while True:
        found = known or await read_stored(path, metadata)
        known = None
        if found is not None:
            if not at_once and any(info.open for info in found.record.ledgers):
                return found.record, found.version
            try:
                return found.record, await metadata.put(path, found.value, found.version)
            except BadVersionError:
                continue
        topic_id = f"{runtime.rng.getrandbits(128):032x}"
        record = ManagedLedgerRecord(
            topic_id, runtime.clock.now_ms(), properties=dict(properties or {})
        )
        try:
            return record, await metadata.put(path, record.encode(), ABSENT)
        except BadVersionError:
            continue  # another broker has just created it


async def read_record(path: str, metadata: MetadataStore) -> ManagedLedgerRecord | None:
    """The record at a path, without opening it; ``None`` if there is none that exists."""
    found = await read_existing(path, metadata)
    return None if found is None else found.record


async def read_ledgers(
    path: str, metadata: MetadataStore
) -> tuple[ManagedLedgerRecord, LedgerList] | None:
    """The record at a path and all its ledgers, without opening it."""
    before: ManagedLedgerRecord | None = None
    while (record := await read_record(path, metadata)) is not None:
        folded = await read_runs(record, metadata)
        if folded is not None:
            return record, record.ledger_list(folded)
        if record == before:
            raise missing_run(path)
        before = record
    return None


def missing_run(path: str) -> CorruptMetadataError:
    """The error for a record that names a run without a document."""
    return CorruptMetadataError(f"{path}: a run of its ledgers is missing in the metadata store")


def _from_document(document: dict[str, Any]) -> ManagedLedgerRecord:
    ledgers = tuple(
        LedgerInfo(int(i), 0, 0, int(timestamp), open=True)
        if entries is None
        else LedgerInfo(int(i), int(entries), int(size), int(timestamp))
        for i, entries, size, timestamp in document["ledgers"]
    )
    ids = [info.ledger_id for info in ledgers]
    if ids != sorted(set(ids)):
        raise ValueError(f"ledger ids do not rise: {ids}")
    return ManagedLedgerRecord(
        str(document["topicId"]),
        int(document["createdMs"]),
        TopicState(document["state"]),
        ledgers,
        Position(*map(int, document["trimmed"])),
        tuple(map(int, document["removing"])),
        {str(key): str(value) for key, value in dict(document["properties"]).items()},
        None if (epoch := document.get("topicEpoch")) is None else int(epoch),
        _compacted(document.get("compacted")),
        tuple(
            LedgerInfo(int(i), int(entries), int(size), int(timestamp))
            for i, entries, size, timestamp in document.get("pending", ())
        ),
        tuple(
            RunLine(int(first), int(last), int(ledgers), bool(settled))
            for first, last, ledgers, settled in document.get("folded", ())
        ),
    )


def _end(info: LedgerInfo) -> Position:
    return Position(info.ledger_id, info.entries - 1)


def _compacted(numbers: list[int] | None) -> CompactedTo | None:
    if numbers is None:
        return None
    ledger_id, *horizon = map(int, numbers)
    return CompactedTo(ledger_id, Position(*horizon))
