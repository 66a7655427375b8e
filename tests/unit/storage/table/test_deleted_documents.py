"""The documents of a deleted table go, and those of the next table of that name stay."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import sealed_ledger_path, table_path
from pulsark.storage.table.files.record import TableRecord
from pulsark.storage.table.tables_to_delete import TablesToDelete, TableToDelete
from pulsark.wire.topic_name import TopicName

NAME = TopicName.parse("persistent://public/default/t")
PATH = table_path(NAME)
OLD, NEW = (TableRecord(letter * 32, 0, ("/root",)) for letter in "ab")


class Overtaken(MemoryMetadataStore):
    """Another broker makes a new table of the name while the old one is being deleted."""

    overtaken = False

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        if path == PATH and self.overtaken:
            self.tree.put(PATH, NEW.encode(), 0, None)
        return await super().page(path, after, limit)


def left_after(store: Overtaken) -> list[str]:
    async def scenario() -> list[str]:
        await store.put(PATH, OLD.encode())
        for ledger_id in range(3):
            await store.put(sealed_ledger_path(PATH, ledger_id), b"{}")
        to_delete = TablesToDelete(store, *cast("Any", (None, None, None)))
        await to_delete.delete_documents(TableToDelete(OLD.table_id, str(NAME), ("/root",)))
        return await store.children(PATH)

    return asyncio.run(scenario())


def test_all_documents_of_a_deleted_table_go() -> None:
    store = Overtaken(MemoryTree())
    assert left_after(store) == []
    assert store.tree.get(PATH) is None


def test_a_new_table_of_the_name_keeps_its_documents() -> None:
    store = Overtaken(MemoryTree())
    store.overtaken = True
    assert left_after(store) == ["0", "1", "2"]
    found = store.tree.get(PATH)
    assert found is not None
    assert found.value == NEW.encode()
