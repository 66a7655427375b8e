"""Which ledgers a topic has is said only when it is decided, whoever owns its partitions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pulsark.dispatch.tables.listed_ledgers import ListedLedgers
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.store import ANY_VERSION
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord
from pulsark.wire.topic_name import TopicName

NAME = TopicName.parse("persistent://public/default/t")
UNLOADED = SimpleNamespace(get_loaded=lambda name: None, is_loading=lambda name: False)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("decided", [None, {8, 9}, {8}, set()])
def test_what_an_undecided_publish_reserved_is_not_taken_for_gone(
    shared: bool, decided: set[int] | None
) -> None:
    """Its owner may die before it decides; tidying would remove the rows of what comes true."""
    reserved = [LedgerInfo(8, 10, 100, 1), LedgerInfo(9, 10, 100, 1)]
    before = ManagedLedgerRecord("id", 1, ledgers=(LedgerInfo(7, 5, 50, 1),))
    record = before.with_pending(reserved)
    if decided is not None:
        record = record.decided(decided)

    async def run() -> list[Any] | None:
        store = MemoryMetadataStore()
        await store.put(managed_ledger_path(NAME), record.encode(), ANY_VERSION)
        listed = ListedLedgers(store, UNLOADED, NAME, shared=shared)  # type: ignore[arg-type]
        found = await listed.of(-1)
        return None if found is None else [n for n in range(20) if found(n) is not None]

    assert asyncio.run(run()) == (None if decided is None else [7, *sorted(decided)])
