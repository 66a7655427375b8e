"""A table that knows more than the metadata store, of which an older copy was put back.

The log of each root says what the table has. So what the store does not know is taken up from the
one that has most, as long as that is a sequel to what the store knows:

1. Ledgers that the topic does not list become part of it, or else stay out.
2. The lists of files of the ledgers, one after the other; then the bulk publishes.
3. The table record, in one compare-and-set. Until then the table cannot be opened.

The repair that follows makes the same of all roots. A log that is no sequel to what is known (the
store went on by itself) is passed over only if what it has may be given up.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from pulsark.errors import CorruptEntryError, OlderMetadataError
from pulsark.storage.table.files.record import DataFile, SealedLedger

if TYPE_CHECKING:
    from pulsark.storage.table.attach import TableOwner
    from pulsark.storage.table.log.log_content import LogContent
    from pulsark.storage.table.process.process import TableProcess

log = logging.getLogger(__name__)

Join = Callable[[Sequence[SealedLedger]], Awaitable[Collection[int]]]
"""Lets a topic list ledgers that its table has; returns the ids of those that it lists now."""


async def all_listed(ledgers: Sequence[SealedLedger]) -> Collection[int]:
    """A ``Join`` for a topic that lists whatever its table has."""
    return [ledger.ledger_id for ledger in ledgers]


async def take_up(
    owner: TableOwner, process: TableProcess, join: Join, *, give_up: bool
) -> tuple[int, int]:
    """Let the metadata store know what some log knows; the files that are new to it.

    Also the number of the last attach that is passed over; 0 without one. ``OlderMetadataError``:
    a log knows more, and is no sequel to what is known.
    """
    passed_over, best, reasons = 0, None, []
    for directory in await owner.newer_logs():
        try:
            found = await process.content(directory, owner.record)
        except CorruptEntryError as e:
            reasons.append(str(e))
            continue
        if found.differs:
            reasons.append(
                f"{directory} has another attach {owner.record.attached}, or is another table"
            )
            passed_over = max(passed_over, found.attached)
        elif best is None or found.attached > best.attached:
            best = found
    if reasons and not give_up:
        raise OlderMetadataError(
            f"{'; '.join(reasons)}: what this log has cannot be made part of the topic. Put the "
            "newest metadata store back; or go on without it: --give-up"
        )
    for reason in reasons:
        log.error("%s: skipped, as requested", reason)
    if best is None:
        return 0, passed_over
    ledgers = _ledgers_of(best)
    listed = await join(ledgers)
    for ledger in ledgers:
        if ledger.ledger_id not in listed:
            log.error(
                "table %s has %d files of ledger %d, which its topic cannot list: they stay where "
                "they are, and no consumer gets them",
                owner.record.table_id, len(ledger.files), ledger.ledger_id,
            )  # fmt: skip
    before = owner.record.attached
    known = {
        file.path for ledger in ledgers for file in await _files_known(owner, ledger.ledger_id)
    }
    await owner.take_up(best, [ledger for ledger in ledgers if ledger.ledger_id in listed])
    new = sum(path not in known for path in best.files)
    log.warning(
        "table %s: the metadata store knew it up to attach %d; up to %d, %d files are taken up "
        "from its log",
        owner.record.table_id, before, best.attached, new,
    )  # fmt: skip
    return new, passed_over


def _ledgers_of(found: LogContent) -> list[SealedLedger]:
    by_ledger: dict[int, list[DataFile]] = {}
    for file in found.files.values():
        by_ledger.setdefault(file.ledger_id, []).append(file)
    ledgers = (_whole(by_ledger[ledger_id]) for ledger_id in sorted(by_ledger))
    return [ledger for ledger in ledgers if ledger.files]


def _whole(files: Iterable[DataFile]) -> SealedLedger:
    files = sorted(files, key=lambda file: file.first_entry_id)
    return SealedLedger(files[0].ledger_id, files[0].partition, tuple(files)).whole()


async def _files_known(owner: TableOwner, ledger_id: int) -> Sequence[DataFile]:
    sealed = await owner.sealed(ledger_id)
    return () if sealed is None else sealed.files
