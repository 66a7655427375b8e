"""A process that shares the metadata file goes on looking at the others, whatever it finds."""

from __future__ import annotations

import asyncio
import builtins
from pathlib import Path
from typing import Any

import pytest

from pulsark.metadata import sqlite_shared
from pulsark.metadata.sqlite_shared import SharedSqliteMetadataStore
from pulsark.metadata.store import ABSENT
from pulsark.runtime import Runtime


def no_descriptor(*_: Any, **__: Any) -> Any:
    raise OSError(24, "Too many open files")


def test_it_hears_of_changes_after_there_was_no_free_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_shared, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(sqlite_shared, "LOOKS_A_DEATH", 1)

    async def main() -> None:
        path = str(tmp_path / "m.db")
        one = await SharedSqliteMetadataStore.join(path, Runtime())
        other = await SharedSqliteMetadataStore.join(path, Runtime())
        failed, heard = asyncio.Event(), asyncio.Event()

        def failing(_: str) -> None:
            failed.set()
            no_descriptor()

        with monkeypatch.context() as patch:
            patch.setattr(sqlite_shared, "lock_file", failing)
            await asyncio.wait_for(failed.wait(), 30)
        one.watch("/a", lambda path: heard.set(), lambda: None)
        await other.put("/a", b"new", ABSENT)
        await asyncio.wait_for(heard.wait(), 5)
        await one.close()
        await other.close()

    asyncio.run(main())


def test_that_another_session_cannot_be_ended_now_fails_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        path = str(tmp_path / "m.db")
        one = await SharedSqliteMetadataStore.join(path, Runtime())
        other = await SharedSqliteMetadataStore.join(path, Runtime())
        ending = other._session
        with monkeypatch.context() as patch:
            patch.setattr(builtins, "open", no_descriptor)
            first = asyncio.create_task(one.put("/a", b"1", ABSENT))
            await asyncio.sleep(0)
            one._end_other(ending, 0.0, None)
            assert await asyncio.gather(one.put("/b", b"2", ABSENT), first)
        assert ending not in one._ending
        await one.close()
        await other.put("/c", b"3", ABSENT)
        await other.close()

    asyncio.run(main())
