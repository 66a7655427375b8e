"""Erase the messages that match a condition, and no others, wherever Pulsark has them.

Spark finds them, so that the condition may be any SQL over the columns of ``format("pulsark")``;
the broker erases them by id. It covers messages published before the job began; all other messages
keep their ids. Another run erases the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

from pulsark.jobs.broker_work import work
from pulsark.jobs.job import AtBroker, Context, Help, Job, UsageError
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IDS_A_REQUEST = 20_000

Id = tuple[int, int, int]
"""Ledger, entry, batch index; -1 for a message sent alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters(AtBroker):
    """The parameters of ``erase_messages``."""

    topic: Annotated[str, Help("the topic")]
    where: Annotated[
        str, Help("which messages: a condition in SQL over the columns, for instance key = 'x'")
    ]
    dry_run: Annotated[bool, Help("only count them")] = False
    vacuum_hours: Annotated[
        float | None,
        Help(
            "readers of older versions of the table keep their files for this time; 0: for none; "
            "tableVacuumRetentionHours of the broker if left out"
        ),
    ] = None


def run(wanted: Parameters, context: Context) -> Mapping[str, Any]:
    """Erase; ``JobError`` if it could not be done to its end."""
    if not wanted.where.strip():
        raise UsageError("--where is empty: erase all of a topic by deleting it")
    topic = TopicName.parse(wanted.topic).base
    admin = context.admin(wanted)
    # Messages may be in the compacted topic alone, because the topic itself was trimmed.
    compacted = any(state.compacted for state in admin.topics.partitions(topic, compacted=True))
    found = _found(wanted, topic, context, compacted=compacted)
    if wanted.dry_run:
        return {"topic": str(topic), "dryRun": True, "messages": found.count()}
    counts = {"messages": 0, "entries": 0, "files": 0, "missing": 0}
    ordered = found.orderBy("ledger_id", "entry_id", "batch_index")
    rows = ((row[0], row[1], row[2]) for row in ordered.toLocalIterator())
    for ids in _requests(rows):
        done = work(admin, topic, "erase", ids=grouped(ids))
        counts["messages"] += done["ids"] - done["missing"]
        for name in ("entries", "files", "missing"):
            counts[name] += done[name]
        context.progress.show(f"{counts['messages']:,} messages erased")
    held = work(admin, topic, "finishErasure", vacuumHours=wanted.vacuum_hours)
    admin.close()
    return {"topic": str(topic), "dryRun": False, **counts, "stillHeld": _still_held(held)}


def _found(wanted: Parameters, topic: TopicName, context: Context, *, compacted: bool) -> DataFrame:
    options = {
        "serviceUrl": wanted.service_url,
        "adminUrl": wanted.admin,
        "topic": str(topic),
    }

    def ids(**more: str) -> DataFrame:
        messages = context.spark.read.format("pulsark").options(**options, **more).load()
        return messages.where(wanted.where).select("ledger_id", "entry_id", "batch_index")

    return ids().union(ids(readCompacted="true")).distinct() if compacted else ids()


def _requests(rows: Iterator[Id]) -> Iterator[list[Id]]:
    """Ids in pieces. A piece ends between two entries: each is written anew once."""
    piece: list[Id] = []
    for row in rows:
        if len(piece) >= IDS_A_REQUEST and row[:2] != piece[-1][:2]:
            yield piece
            piece = []
        piece.append(row)
    if piece:
        yield piece


def grouped(ids: Iterable[Id]) -> list[list[Any]]:
    """As the admin API takes them."""
    ledgers: dict[int, dict[int, list[int] | None]] = {}
    for ledger_id, entry_id, index in ids:
        entries = ledgers.setdefault(ledger_id, {})
        if index < 0:
            entries[entry_id] = None
        else:
            known = entries.setdefault(entry_id, [])
            if known is not None:
                known.append(index)
    return [
        [ledger_id, [[entry_id, indexes] for entry_id, indexes in entries.items()]]
        for ledger_id, entries in ledgers.items()
    ]


def _still_held(held: Mapping[str, Any]) -> dict[str, Any]:
    """What the broker says, with a time for people."""
    until = held["untilMs"]
    return {
        "oldTableFiles": held["oldFiles"],
        "oldTableFilesUntil": (
            datetime.fromtimestamp(until / 1000, UTC).isoformat() if until else None
        ),
        "deletedTableFiles": held["deletedFiles"],
        "journalSegments": held["journalSegments"],
        "connectedConsumers": held["consumers"],
        "storageRootsAway": held["rootsAway"],
        "bookiesAway": held["bookiesAway"],
    }


JOB = Job("erase_messages", "Erase the messages that a condition finds, for good.", Parameters, run)
