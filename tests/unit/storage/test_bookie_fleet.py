"""A bookie that lost its disk gets another name."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from pulsark.errors import ConfigError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.runtime import Runtime
from pulsark.storage.bookie_fleet import BookieHome, open_fleet
from pulsark.storage.journal_settings import JournalSettings


def homes(root: Path, count: int) -> list[BookieHome]:
    return [
        BookieHome(str(root / f"{i}/journal"), str(root / f"{i}/ledgers")) for i in range(count)
    ]


def names(root: Path, metadata: MemoryMetadataStore, count: int = 2) -> list[str]:
    async def run() -> list[str]:
        fleet = await open_fleet(homes(root, count), JournalSettings(), metadata, Runtime())
        for bookie in fleet.values():
            await bookie.close()
        return sorted(fleet)

    return asyncio.run(run())


@pytest.mark.feature("F71")
def test_names_stay_over_restarts(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    assert names(tmp_path, metadata) == names(tmp_path, metadata) == ["bookie-1", "bookie-2"]


def test_an_empty_disk_never_answers_under_the_old_name(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata)
    shutil.rmtree(tmp_path / "1")
    first, second = names(tmp_path, metadata)
    assert first == "bookie-1"
    assert second not in ("bookie-1", "bookie-2")
    assert names(tmp_path, metadata) == [first, second]


def test_a_bookie_that_lost_only_its_journal_is_left_out(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata)
    shutil.rmtree(tmp_path / "1" / "journal")
    assert names(tmp_path, metadata) == ["bookie-1"]


def test_without_any_bookie_the_reason_is_raised(tmp_path: Path) -> None:
    metadata = MemoryMetadataStore()
    names(tmp_path, metadata, 1)
    shutil.rmtree(tmp_path / "0" / "journal")
    with pytest.raises(ConfigError, match="holds no journal"):
        names(tmp_path, metadata, 1)


def test_anothers_disk_is_refused(tmp_path: Path) -> None:
    names(tmp_path / "a", MemoryMetadataStore(), 1)
    metadata = MemoryMetadataStore()
    names(tmp_path / "b", metadata, 1)
    shutil.rmtree(tmp_path / "b" / "0")
    shutil.move(tmp_path / "a" / "0", tmp_path / "b" / "0")
    with pytest.raises(ConfigError, match="knows instance"):
        names(tmp_path / "b", metadata, 1)
