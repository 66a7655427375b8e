"""A storage root has one name, however the settings write it: it is known by it for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsark.config.sources import load_settings
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.processes.own_disks import open_roots
from pulsark.runtime import Runtime


def test_slashes_and_relative_paths_are_no_other_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings().settings

    async def main() -> None:
        metadata = MemoryMetadataStore()
        written = ("tables", f"{tmp_path}/tables/", f"{tmp_path}/./tables")
        found = [await open_roots(settings, [each], metadata, Runtime()) for each in written]
        assert {roots.paths for roots in found} == {(f"{tmp_path}/tables",)}
        assert found[0] == found[1] == found[2]

    asyncio.run(main())
