"""A process in the foreground ends by a signal or by its own failure, and stops once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from pulsark.errors import PulsarkError, StorageError
from pulsark.processes.until_signal import serve_until_signal


class Process:
    """Starts when it may, and notes what happens to it."""

    def __init__(self, failed: Callable[[PulsarkError], None]) -> None:
        self.failed = failed
        self.may_start = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.said: list[str] = []
        self.start_error: PulsarkError | None = None
        self.stop_error: PulsarkError | None = None

    async def start(self) -> dict[str, Any]:
        self.said.append("starts")
        await self.may_start.wait()
        if self.start_error:
            raise self.start_error
        return {"pid": "1"}

    async def stop(self) -> None:
        self.said.append("stops")
        await self.may_stop.wait()
        if self.stop_error:
            raise self.stop_error


class Served:
    """A process that is served by the loop."""

    def __init__(
        self, failed_stop_seconds: float | None = None, stop_seconds: float | None = None
    ) -> None:
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        made: list[Process] = []

        def make(failed: Callable[[PulsarkError], None]) -> Process:
            made.append(Process(failed))
            return made[0]

        serving = serve_until_signal(
            make,
            self.ready,
            stop_seconds=stop_seconds,
            failed_stop_seconds=failed_stop_seconds,
        )
        self.task = asyncio.ensure_future(serving)
        self._made = made

    async def begun(self) -> Process:
        for _ in range(3):
            await asyncio.sleep(0)
        (process,) = self._made
        assert process.said == ["starts"]
        return process


@pytest.mark.parametrize("while_it_starts", [True, False])
def test_a_signal_stops_it_in_order(while_it_starts: bool) -> None:
    async def scenario() -> None:
        served = Served()
        process = await served.begun()
        process.may_stop.set()
        if not while_it_starts:
            process.may_start.set()
            assert await served.ready == {"pid": "1"}
        os.kill(os.getpid(), signal.SIGTERM)
        await served.task
        assert process.said == ["starts", "stops"]
        assert served.ready.done() != while_it_starts

    asyncio.run(scenario())


def test_a_failure_is_raised_and_the_stop_is_given_up() -> None:
    async def scenario() -> None:
        served = Served(failed_stop_seconds=0)
        process = await served.begun()
        process.may_start.set()
        await served.ready
        process.failed(StorageError("the disk has failed"))
        process.failed(StorageError("and again"))
        with pytest.raises(StorageError, match="the disk has failed"):
            await served.task
        assert process.said == ["starts", "stops"]

    asyncio.run(scenario())


def test_who_cannot_start_says_so_and_not_what_its_stop_met() -> None:
    async def scenario() -> None:
        served = Served()
        process = await served.begun()
        process.start_error = StorageError("damaged")
        process.stop_error = StorageError("not stopped")
        process.may_stop.set()
        process.may_start.set()
        with pytest.raises(StorageError, match="damaged"):
            await served.task
        assert not served.ready.done()

    asyncio.run(scenario())


def test_what_an_orderly_stop_meets_is_raised() -> None:
    async def scenario() -> None:
        served = Served(failed_stop_seconds=0)
        process = await served.begun()
        process.stop_error = StorageError("not stopped")
        process.may_stop.set()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(StorageError, match="not stopped"):
            await served.task

    asyncio.run(scenario())


@pytest.mark.parametrize("why", ["", "the session has ended"])
def test_a_stop_that_waits_for_others_in_vain_ends_the_process(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    codes: list[int] = []

    async def scenario() -> None:
        ended = asyncio.Event()

        def end(code: int) -> None:
            codes.append(code)
            ended.set()

        monkeypatch.setattr(os, "_exit", end)
        monkeypatch.setattr(logging, "shutdown", lambda: None)
        served = Served(stop_seconds=0)
        process = await served.begun()
        if why:
            process.failed(StorageError(why))
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        await ended.wait()
        process.may_stop.set()
        with pytest.raises(StorageError) if why else contextlib.nullcontext():
            await served.task

    asyncio.run(scenario())
    assert codes == [1]
    assert why in caplog.text
    assert "not stopped within 0 s (brokerShutdownTimeoutMs)" in caplog.text
