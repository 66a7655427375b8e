"""What processes that died leave in the run directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pulsark.config.settings import Settings
from pulsark.processes.run_directory import RunDirectory
from pulsark.storage.backup.data_dir import DataDir


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir.of(Settings(dataDir=str(tmp_path)))


@pytest.fixture
def left(data: DataDir) -> Iterator[list[str]]:
    """Sockets of a broker and a bookie."""
    with closing(RunDirectory(data)) as run:
        addresses = [run.address_of_broker(40123), run.address_of_bookie("bookie-1")]
        for address in addresses:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
        yield addresses


def test_sockets_of_processes_that_died_are_removed(data: DataDir, left: list[str]) -> None:
    (Path(data.path) / "run" / "notes").touch()
    with closing(RunDirectory(data)) as run:
        assert run.clear()
        assert sorted(os.listdir(run.path)) == ["PROCESSES", "notes"]
        assert run.clear()


def test_none_is_removed_while_a_process_lives(data: DataDir, left: list[str]) -> None:
    with closing(RunDirectory(data)) as run:
        with closing(RunDirectory(data)) as other:
            other.live()
            assert not run.clear()
            assert all(map(os.path.exists, left))
        assert run.clear()
        assert not any(map(os.path.exists, left))
