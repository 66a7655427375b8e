"""What is done to a table comes to the same on a directory and in an object store."""

from __future__ import annotations

import pytest

from pulsark.storage.roots.root_files import RootFiles
from pulsark.storage.table.files.root_files import remove_tree
from pulsark.storage.table.log import checkpoint
from pulsark.storage.table.log.delta_log import DeltaLog
from pulsark.storage.table.log.time_travel import read_log, table_at
from pulsark.storage.table.repair import copy_state
from tests.contracts.test_root_files import root as root
from tests.contracts.test_root_files import store as store
from tests.support.tables import GrowingTable, attached_files, check_files


def test_a_table_grows_and_is_folded(
    root: tuple[RootFiles, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_COMMITS", 3)
    files, path = root
    table = GrowingTable(path, files)
    for ledger_id in (5, 7, 9, 11):
        table.attach(0, ledger_id, 0, 10)
    table.remove(5)
    assert checkpoint.checkpoint_if_due(files, table.directory) == 5
    assert checkpoint.checkpoint_if_due(files, table.directory) is None
    table.fold(3)
    log = DeltaLog(files, table.directory)
    assert (log.first(), log.versions()) == (3, [3, 4, 5])
    commits = read_log(files, [table.directory])
    assert len(table_at(commits, 4, files, [table.directory]).files) == 4
    table.attach(0, 13, 0, 10)
    attached, now = attached_files(files, table.directory)
    assert attached == 6
    check_files(files, table.directory, now)
    assert [copy_state(files, table.directory, file, verify=True) for file in now] == ["ok"] * 4
    remove_tree(files, table.directory)
    assert files.list(table.directory) == []
