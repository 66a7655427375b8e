"""Deleting a managed ledger: a durable state first, then its ledgers, then its record."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from pulsark.errors import BadVersionError, MetadataError, StorageError
from pulsark.metadata.store import MetadataStore
from pulsark.storage.ledger import LedgerManager
from pulsark.storage.ledger_record import TopicState, decode_record

log = logging.getLogger(__name__)


async def delete_ledgers(ledger_ids: Iterable[int], manager: LedgerManager) -> set[int]:
    """Remove ledgers that nobody lists any more; returns those that are gone."""
    gone = set()
    for ledger_id in ledger_ids:
        try:
            await manager.delete(ledger_id)
        except (StorageError, MetadataError) as e:
            log.warning("ledger %d is not removed yet: %s", ledger_id, e)
        else:
            gone.add(ledger_id)
    return gone


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
            listed = [info.ledger_id for info in record.ledgers]
            for ledger_id in (*listed, *compacted, *record.removing):
                await manager.delete(ledger_id)
            await metadata.delete(path, version)
        except BadVersionError:
            continue  # its owner changed it meanwhile; now, it cannot any more
        return
