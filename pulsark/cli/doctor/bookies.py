"""Do the bookies belong to this metadata store, and is it as new as they are?"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding, ways_out
from pulsark.cli.doctor.stopped import Stopped, StoppedBookie
from pulsark.metadata.paths import LEDGER_ID_COUNTER, bookie_path
from pulsark.metadata.sqlite_reading import StoreReading
from pulsark.storage.bookie.claims import Seen, foreign, older
from pulsark.storage.bookie.identity import IDENTITY_NAME
from pulsark.storage.bookie.journal_format import segment_id_of


def check(stopped: Stopped) -> Iterator[Finding]:
    """Findings about the identity of each bookie, and about the age of the store."""
    for bookie in stopped.bookies:
        names = stopped.disk.list(bookie.home.journal_dir) if not bookie.is_empty else ()
        has_journal = any(segment_id_of(name) is not None for name in names)
        if bookie.trouble or (lost := _lost_identity(bookie, has_journal=has_journal)) is None:
            yield _identity(bookie, stopped.store, stopped.data.path)
        else:
            yield lost
    yield from _age(stopped)


def _identity(bookie: StoppedBookie, store: StoreReading, data: str) -> Finding:
    check = bookie.place
    if bookie.trouble:
        return Finding(check, FAILURE, "; ".join(bookie.trouble))
    value = store.get(bookie_path(bookie.place))
    record = json.loads(value) if value is not None else None
    identity = bookie.in_ledgers
    if identity is None:
        if record is None or record["instanceId"] is None:
            return Finding(check, OK, "was never in service")
        return Finding(
            check,
            WARNING,
            f"{record['bookieId']} is known, but {bookie.home.ledger_dir} is empty",
            "mount its directories; else the next start puts a new bookie in its place, and "
            "ledgers are copied to it from the others",
        )
    reason = foreign(bookie.place, record, identity, store.identity or "unreadable")
    if reason is not None:
        return Finding(check, FAILURE, reason, ways_out(data))
    assert record is not None
    if record["instanceId"] not in (None, identity.instance_id.hex()):
        return Finding(
            check,
            FAILURE,
            f"the directories are those of instance {identity.instance_id.hex()}, the metadata "
            f"store knows {record['instanceId']}",
            "mount the right directories",
        )
    return Finding(check, OK, f"{identity.bookie_id}, instance {identity.instance_id.hex()}")


def _lost_identity(bookie: StoppedBookie, *, has_journal: bool) -> Finding | None:
    """Return what the start will say of a bookie whose two directories do not say the same."""
    journal, ledgers = bookie.home.journal_dir, bookie.home.ledger_dir
    in_journal, in_ledgers = bookie.in_journal, bookie.in_ledgers
    if in_journal is not None and in_ledgers is not None:
        if in_journal.instance_id == in_ledgers.instance_id:
            return None
        return Finding(
            bookie.place,
            FAILURE,
            f"{journal} and {ledgers} belong to two bookies",
            "mount the right directories",
        )
    if not has_journal:
        if in_ledgers is None:
            return None
        return Finding(
            bookie.place,
            FAILURE,
            f"{ledgers} is that of bookie {in_ledgers.bookie_id}, but {journal} holds no journal",
            "mount the right directory",
        )
    lacks, has = (ledgers, journal) if in_ledgers is None else (journal, ledgers)
    return Finding(
        bookie.place,
        FAILURE,
        f"{lacks} holds no {IDENTITY_NAME} file, though the bookie has a journal",
        "mount the right directory; if only the file is lost, copy it from the other one\n"
        f"cp {shlex.quote(f'{has}/{IDENTITY_NAME}')} {shlex.quote(lacks)}",
    )


def _age(stopped: Stopped) -> Iterator[Finding]:
    value = stopped.store.get(LEDGER_ID_COUNTER)
    next_ledger_id = 0 if value is None else int(value)
    seen = [
        Seen(b.in_ledgers.bookie_id, b.journal.index.mark, b.journal.index.max_ledger_id)
        for b in stopped.bookies
        if b.journal is not None and b.in_ledgers is not None
    ]
    unknown = [bookie for bookie in seen if not stopped.store.history.knows(bookie.mark)]
    reason = older(seen, unknown, next_ledger_id)
    if reason is not None:
        yield Finding("age", FAILURE, reason, ways_out(stopped.data.path))
        return
    highest = max((bookie.max_ledger_id for bookie in seen), default=-1)
    yield Finding(
        "age",
        OK,
        f"the metadata store is as new as the bookies; the next ledger is {next_ledger_id}, "
        f"the highest that they have seen {highest}",
    )
