"""Do the bookies belong to this metadata store, and is it as new as they are?"""

from __future__ import annotations

import json
from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding
from pulsark.cli.doctor.stopped import Stopped, StoppedBookie
from pulsark.metadata.sqlite_reading import StoreReading


def check(stopped: Stopped) -> Iterator[Finding]:
    """Findings about the identity of each bookie, and about the counter of ledger ids."""
    for bookie in stopped.bookies:
        yield _identity(bookie, stopped.store)
    yield from _counter(stopped)


def _identity(bookie: StoppedBookie, store: StoreReading) -> Finding:
    check = bookie.place
    if bookie.trouble:
        return Finding(check, FAILURE, "; ".join(bookie.trouble))
    value = store.get(f"/bookies/{bookie.place}")
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
    if record is None:
        return Finding(
            check,
            FAILURE,
            f"{identity.bookie_id} is in service, but the metadata store has no record of it: the "
            "store is another one, or an older one",
        )
    if record["instanceId"] not in (None, identity.instance_id.hex()):
        return Finding(
            check,
            FAILURE,
            f"the directories are those of instance {identity.instance_id.hex()}, the metadata "
            f"store knows {record['instanceId']}",
            "mount the right directories",
        )
    return Finding(check, OK, f"{identity.bookie_id}, instance {identity.instance_id.hex()}")


def _counter(stopped: Stopped) -> Iterator[Finding]:
    value = stopped.store.get("/counters/ledger-id")
    counter = 0 if value is None else int(value)
    seen = max((b.journal.index.max_ledger_id for b in stopped.bookies if b.journal), default=-1)
    if seen >= counter:
        yield Finding(
            "ledger ids",
            FAILURE,
            f"the metadata store would give {counter} next, but the bookies have seen {seen}: "
            "the store is older than they are",
        )
    else:
        yield Finding("ledger ids", OK, f"next {counter}, highest on bookies {seen}")
