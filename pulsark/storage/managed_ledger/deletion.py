"""Deleting a managed ledger: a durable state first, then its ledgers, then its record.

A ledger that a bookie could not be told of is noted at ``/removed-ledgers/<id>`` before the record
goes: so the deletion comes to its end and the name is free, and what is left is removed later.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, MetadataError, StorageError
from pulsark.metadata.paths import REMOVED_LEDGERS, ledger_runs_path, removed_ledger_path
from pulsark.storage.managed_ledger.ledger_runs import decode_run
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord, TopicState, decode_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.metadata.store import MetadataStore
    from pulsark.storage.ledger.manager import LedgerManager

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Ledgers that are deleted side by side, so that the store can write them together."""


async def delete_ledgers(ledger_ids: Iterable[int], manager: LedgerManager) -> set[int]:
    """Remove ledgers that no record lists any more; returns those that are gone."""
    wanted = list(ledger_ids)
    gone: set[int] = set()
    for start in range(0, len(wanted), AT_ONCE):
        part = wanted[start : start + AT_ONCE]
        done = await asyncio.gather(*[_delete(ledger_id, manager) for ledger_id in part])
        gone.update(ledger_id for ledger_id, went in zip(part, done, strict=True) if went)
    return gone


async def _delete(ledger_id: int, manager: LedgerManager) -> bool:
    try:
        await manager.delete(ledger_id)
    except (StorageError, MetadataError) as e:
        log.warning("cannot remove ledger %d yet: %s", ledger_id, e)
        return False
    return True


async def delete_for_good(
    ledger_ids: Sequence[int], manager: LedgerManager, metadata: MetadataStore
) -> None:
    """Remove ledgers, now or by ``delete_noted``. ``MetadataError``: call it again."""
    left = set(ledger_ids) - await delete_ledgers(ledger_ids, manager)
    for ledger_id in sorted(left):
        await metadata.put(removed_ledger_path(ledger_id), b"{}")


async def delete_noted(manager: LedgerManager, metadata: MetadataStore) -> None:
    """Remove the ledgers of deleted topics of which a bookie could not be told until now."""
    noted = [int(name) for name in await metadata.children(REMOVED_LEDGERS)]
    for ledger_id in sorted(await delete_ledgers(noted, manager)):
        with suppress(BadVersionError):  # another broker did it
            await metadata.delete(removed_ledger_path(ledger_id))


async def delete_managed_ledger(
    path: str, manager: LedgerManager, metadata: MetadataStore, *, topic_id: str | None = None
) -> None:
    """Delete a managed ledger, loaded or not; goes on where an earlier attempt stopped.

    With ``topic_id`` only that one, not a successor of the same name. No error if it is gone.
    """
    while True:
        found = await metadata.get(path)
        if found is None:
            return
        record, version = decode_record(path, found.value), found.version
        if topic_id not in (None, record.topic_id):
            return
        try:
            if record.state is not TopicState.DELETING:
                record = replace(record, state=TopicState.DELETING)
                version = await metadata.put(path, record.encode(), version)
            compacted = [] if record.compacted is None else [record.compacted.ledger_id]
            await _delete_runs(record, manager, metadata)
            listed = [info.ledger_id for info in record.ledgers]
            await delete_for_good((*listed, *compacted, *record.removing), manager, metadata)
            await metadata.delete(path, version)
        except BadVersionError:
            continue  # its owner changed it meanwhile; now, it cannot any more
        return


async def _delete_runs(
    record: ManagedLedgerRecord, manager: LedgerManager, metadata: MetadataStore
) -> None:
    """Delete folded ledgers. A document goes after its ledgers: what is there is left to do."""
    parent = ledger_runs_path(record.topic_id)
    for name in await metadata.children(parent):
        path = f"{parent}/{name}"
        found = await metadata.get(path)
        if found is not None:
            run = decode_run(path, found.value)
            listed = [i.ledger_id for i in run.infos(record.trimmed.ledger_id + 1)]
            await delete_for_good(listed, manager, metadata)
            with suppress(BadVersionError):  # another broker did it
                await metadata.delete(path)
