"""One read from storage at a time, tried again until it works, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pulsark.dispatch.subscription.storage_read import RETRY_SECONDS, StorageRead
from pulsark.errors import CorruptEntryError, StorageError
from pulsark.wire.position import Position
from tests.sim.simulation import Simulation

P = Position(7, 3)


def run(main: Any) -> None:
    with Simulation() as sim:
        sim.run(main())


def test_what_was_read_is_used_and_nothing_is_under_way_by_then() -> None:
    async def main() -> None:
        used: list[Any] = []
        read = StorageRead("t: subscription s", used.clear)

        async def entries() -> list[Any]:
            await asyncio.sleep(1)
            return ["entry"]

        read.start(P, entries, lambda found: used.append((found, read.task)))
        assert read.task is not None
        await asyncio.sleep(2)
        assert used == [(["entry"], None)]

    run(main)


def test_a_read_that_was_cancelled_has_no_effect() -> None:
    async def main() -> None:
        effects: list[str] = []
        read = StorageRead("t: subscription s", lambda: effects.append("again"))

        async def entries() -> list[Any]:
            await asyncio.sleep(1)
            return []

        read.start(P, entries, lambda _: effects.append("first"))
        await asyncio.sleep(0.5)
        read.cancel()
        assert read.task is None
        read.start(P, entries, lambda _: effects.append("second"))
        await asyncio.sleep(5)
        assert effects == ["second"]

    run(main)


@pytest.mark.parametrize("error", [None, StorageError("gone")])
def test_a_read_that_goes_on_although_it_was_cancelled_has_no_effect(
    error: StorageError | None,
) -> None:
    """What it read is older than the place from which the next one reads."""

    async def main() -> None:
        effects: list[str] = []
        read = StorageRead("t: subscription s", lambda: effects.append("again"))

        async def stubborn() -> list[Any]:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if error is not None:
                    raise error from None
            return []

        async def entries() -> list[Any]:
            await asyncio.sleep(3)
            return []

        read.start(P, stubborn, lambda _: effects.append("first"))
        await asyncio.sleep(0.5)
        read.cancel()
        read.start(P, entries, lambda _: effects.append("second"))
        await asyncio.sleep(5)
        assert effects == ["second"]

    run(main)


@pytest.mark.parametrize("error", [StorageError("gone"), CorruptEntryError("bad"), OSError()])
def test_a_failure_is_logged_once_and_the_owner_asked_to_try_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        attempts: list[float] = []
        loop = asyncio.get_running_loop()

        async def entries() -> list[Any]:
            attempts.append(loop.time())
            raise error

        def again() -> None:
            assert read.task is None
            if len(attempts) < 3:
                read.start(P, entries, lambda _: None)

        read = StorageRead("t: subscription s", again)
        again()
        await asyncio.sleep(10 * RETRY_SECONDS)
        assert attempts == [0, RETRY_SECONDS, 2 * RETRY_SECONDS]

    with caplog.at_level(logging.WARNING):
        run(main)
    (said,) = caplog.records
    assert said.getMessage().startswith("t: subscription s cannot read entries from 7:3 on")
    assert ("pulsark doctor" in said.getMessage()) == isinstance(error, CorruptEntryError)


def test_a_read_that_is_cancelled_while_it_waits_is_not_tried_again() -> None:
    async def main() -> None:
        again: list[None] = []
        read = StorageRead("t: subscription s", lambda: again.append(None))

        async def entries() -> list[Any]:
            raise StorageError("gone")

        read.start(P, entries, lambda _: None)
        await asyncio.sleep(RETRY_SECONDS / 2)
        read.cancel()
        await asyncio.sleep(5 * RETRY_SECONDS)
        assert again == []

    run(main)
