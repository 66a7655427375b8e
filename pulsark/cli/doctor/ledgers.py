"""Do bookies and tables still have every entry that the metadata store knows of?

The metadata store has the last entry of each closed ledger. What is not in the topic's table must
be on a bookie. Of an open ledger only the journals know the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding
from pulsark.cli.doctor.stopped import Stopped
from pulsark.errors import MetadataError
from pulsark.metadata.paths import LEDGERS, MANAGED_LEDGERS, TABLES, topic_at
from pulsark.metadata.sqlite_reading import StoreReading
from pulsark.storage.bookie.index import BookieIndex
from pulsark.storage.ledger.metadata import LedgerMetadata, decode_ledger_metadata
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord, TopicState, decode_record
from pulsark.storage.table.files.record import SealedLedger, TableRecord

TOPICS_SHOWN = 20


def check(stopped: Stopped) -> Iterator[Finding]:
    """One finding for each topic that lacks entries; one if none does."""
    bookies = {
        bookie.in_ledgers.bookie_id: bookie.journal
        for bookie in stopped.bookies
        if bookie.journal is not None and bookie.in_ledgers is not None
    }
    accepted = any(journal.report.lost for journal in bookies.values())
    indexes = {name: journal.index for name, journal in bookies.items()}
    sealed = _sealed_through(stopped.store)
    ledgers, lost = 0, dict[str, list[str]]()
    for owner, metadata in _listed(stopped.store):
        if not indexes.keys() >= set(metadata.bookie_ids()):
            continue  # a bookie that is not here may have them
        ledgers += 1
        gone = missing(metadata, indexes, sealed.get(metadata.ledger_id, -1))
        if gone:
            text = f"{gone} of {metadata.last_entry_id + 1} entries of ledger {metadata.ledger_id}"
            lost.setdefault(owner, []).append(text)
    for owner, texts in list(lost.items())[:TOPICS_SHOWN]:
        yield Finding(
            "ledgers",
            WARNING if accepted else FAILURE,
            f"{topic_at(MANAGED_LEDGERS, owner)}: {', '.join(texts[:3])} are neither on bookies "
            "nor in its table",
            "" if accepted else "restore a backup, or go on without them: consumers skip them",
        )
    if len(lost) > TOPICS_SHOWN:
        yield Finding("ledgers", FAILURE, f"{len(lost) - TOPICS_SHOWN} more topics lack entries")
    if not lost:
        yield Finding("ledgers", OK, f"{ledgers} closed ledgers, all entries of them are there")


def missing(metadata: LedgerMetadata, indexes: dict[str, BookieIndex], sealed_through: int) -> int:
    """Return how many entries of a closed ledger no bookie has and the table does not have."""
    spans: list[tuple[int, int]] = []
    through = sealed_through
    for name in metadata.bookie_ids():
        state = indexes[name].ledgers.get(metadata.ledger_id)
        if state is not None:
            through = max(through, state.released)
            spans += [(extent.first, extent.last) for extent in state.extents()]
    gone, expected = 0, through + 1
    for first, last in sorted(spans):
        gone += max(0, min(first, metadata.last_entry_id + 1) - expected)
        expected = max(expected, last + 1)
    return gone + max(0, metadata.last_entry_id + 1 - expected)


def _listed(store: StoreReading) -> Iterator[tuple[str, LedgerMetadata]]:
    """Closed ledgers of topics, with the path of the record that lists them."""
    records: dict[str, ManagedLedgerRecord | None] = {}
    for path, value in store.nodes.items():
        if not path.startswith(f"{LEDGERS}/"):
            continue
        with suppress(MetadataError, ValueError):
            metadata = decode_ledger_metadata(int(path.rpartition("/")[2]), value)
            owner = metadata.config.owner
            if not metadata.is_closed or metadata.is_attached:
                continue
            if owner not in records:
                records[owner] = _record(store, owner)
            record = records[owner]
            if record is not None and metadata.ledger_id in _ids(record):
                yield owner, metadata


def _record(store: StoreReading, owner: str) -> ManagedLedgerRecord | None:
    value = store.get(owner) if owner.startswith(f"{MANAGED_LEDGERS}/") else None
    record = None if value is None else decode_record(owner, value)
    return None if record is None or record.state is TopicState.DELETING else record


def _ids(record: ManagedLedgerRecord) -> set[int]:
    """Ledgers whose entries must all be there: removed and trimmed ones need not."""
    listed = {info.ledger_id for info in record.ledgers} - set(record.removing)
    return {number for number in listed if number > record.trimmed.ledger_id}


def _sealed_through(store: StoreReading) -> dict[int, int]:
    """By ledger, the last entry that its topic's table has."""
    through: dict[int, int] = {}

    def note(files: Iterable[tuple[int, int]]) -> None:
        for ledger_id, last in files:
            through[ledger_id] = max(last, through.get(ledger_id, -1))

    for path, value in store.nodes.items():
        if not path.startswith(f"{TABLES}/"):
            continue
        with suppress(MetadataError, ValueError):
            if "tableId" in json.loads(value):
                intent = TableRecord.decode(path, value).intent
                adds = () if intent is None else intent.adds
                note((file.ledger_id, file.last_entry_id) for file in adds)
            else:
                sealed = SealedLedger.decode(path, value)
                note([(sealed.ledger_id, sealed.through)])
    return through
