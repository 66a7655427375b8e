"""A process that ends is started again, whatever happens to its supervisor meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.processes import kept_child
from pulsark.processes.duty import BOOKIE, Duty
from pulsark.processes.kept_child import KeptChild

READY_AND_GONE = "#!/bin/sh\nread duty\necho '{\"ready\": {}}' >&0\n"


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_child, "PAUSE_SECONDS_MAX", 0.01)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What runs in place of the interpreter: reports, and ends."""
    found = tmp_path / "program"
    found.write_text(READY_AND_GONE)
    found.chmod(0o700)
    monkeypatch.setattr(kept_child.sys, "executable", str(found))
    return found


async def lives(child: KeptChild, lived: asyncio.Queue[None], number: int) -> None:
    child.start()
    try:
        async with asyncio.timeout(20):
            for _ in range(number):
                await lived.get()
    finally:
        await child.stop(5)


def test_a_report_that_cannot_be_kept_does_not_end_it(program: Path) -> None:
    async def scenario() -> None:
        lived: asyncio.Queue[None] = asyncio.Queue()

        def ready(told: dict[str, Any]) -> None:
            lived.put_nowait(None)
            raise OSError("No space left on device")

        await lives(KeptChild(BOOKIE, lambda: Duty(BOOKIE, Settings()), ready), lived, 3)

    asyncio.run(scenario())


def test_a_process_that_cannot_be_started_is_tried_again(program: Path) -> None:
    async def scenario() -> None:
        lived: asyncio.Queue[None] = asyncio.Queue()
        starts = 0

        def duty() -> Duty:
            nonlocal starts
            starts += 1
            program.chmod(0o600 if starts == 2 else 0o700)
            return Duty(BOOKIE, Settings())

        await lives(KeptChild(BOOKIE, duty, lambda told: lived.put_nowait(None)), lived, 3)
        assert starts >= 4

    asyncio.run(scenario())
