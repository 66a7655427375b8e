"""A child process is restarted whenever it ends, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.processes import kept_child
from pulsark.processes.duty import Duty
from pulsark.processes.kept_child import KeptChild

BEGIN = """
import os, socket, sys, time
channel = socket.socket(fileno=0).makefile("rwb")
channel.readline()
def say(line):
    channel.write(line + b"\\n")
    channel.flush()
"""
READY = 'say(b\'{"ready": {"pid": %d}}\' % os.getpid())\n'
UNTIL_THE_END = "channel.readline()"


class Ready:
    """Hears what the processes report."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def hear(self, told: dict[str, Any]) -> None:
        self.told.put_nowait(told)

    async def next(self) -> int:
        async with asyncio.timeout(30):
            return int((await self.told.get())["pid"])


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a scenario with a program in the place of the real one; pauses are short."""
    monkeypatch.setattr(kept_child, "PAUSE_SECONDS", 0.01)

    def run(
        program: str,
        scenario: Callable[[KeptChild, Ready], Awaitable[None]],
        hear: Callable[[Ready, dict[str, Any]], None] = Ready.hear,
        role: str = "broker-7",
        settings: Settings | None = None,
        **of_role: Any,
    ) -> None:
        monkeypatch.setattr(kept_child, "PROGRAM", (sys.executable, "-c", BEGIN + program))

        async def main() -> None:
            ready = Ready()
            duty = Duty(role, settings or Settings())
            child = KeptChild(duty.role, lambda: duty, partial(hear, ready), **of_role)
            child.start()
            try:
                await scenario(child, ready)
            finally:
                await child.stop(20)
            assert child.pid == 0

        asyncio.run(main())

    return run


def test_one_that_dies_is_restarted(
    kept: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(child: KeptChild, ready: Ready) -> None:
        first = await ready.next()
        await child.first
        os.kill(first, signal.SIGKILL)
        second = await ready.next()
        assert second != first
        assert child.pid == second
        os.kill(second, signal.SIGKILL)
        await ready.next()

    kept(READY + UNTIL_THE_END, scenario)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.partition("; ")[2] for text in said] == [
        "restarting it in 0.01 s",
        "restarting it in 0.02 s",
    ]
    assert all("was ended by SIGKILL" in text for text in said)


def test_one_that_dies_and_leaves_a_child_with_its_socket_is_restarted(
    kept: Callable[..., None],
) -> None:
    async def scenario(child: KeptChild, ready: Ready) -> None:
        first, left = await ready.next(), await ready.next()
        try:
            os.kill(first, signal.SIGKILL)
            second = await ready.next()
            assert second not in (first, left)
        finally:
            os.kill(left, signal.SIGKILL)
            os.kill(await ready.next(), signal.SIGKILL)

    leave = """
left = os.fork()
if not left:
    time.sleep(600)
say(b'{"ready": {"pid": %d}}' % left)
"""
    kept(READY + leave + UNTIL_THE_END, scenario)


def test_one_that_never_was_ready_is_an_error_with_its_reason(kept: Callable[..., None]) -> None:
    async def scenario(child: KeptChild, _: Ready) -> None:
        with pytest.raises(ConfigError, match=r"^port 1 is in use$"):
            await child.first

    kept('say(b\'{"error": "port 1 is in use"}\')', scenario)


def test_or_with_how_it_ended(kept: Callable[..., None]) -> None:
    async def scenario(child: KeptChild, _: Ready) -> None:
        with pytest.raises(ConfigError, match=r"broker-7 \(process \d+\) ended with 3"):
            await child.first

    kept("sys.exit(3)", scenario)


def test_one_that_cannot_be_started_now_is_tried_again(
    kept: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(child: KeptChild, ready: Ready) -> None:
        first = await ready.next()
        start, attempts = asyncio.create_subprocess_exec, []

        async def failing(*args: Any, **kwargs: Any) -> Any:
            attempts.append(args)
            if len(attempts) < 3:
                raise OSError(11, "Resource temporarily unavailable")
            return await start(*args, **kwargs)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", failing)
        os.kill(first, signal.SIGKILL)
        assert await ready.next() != first
        assert len(attempts) == 3

    kept(READY + UNTIL_THE_END, scenario)


def test_what_changes_while_a_process_is_made_is_in_its_duty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = BEGIN.replace("channel.readline()", "duty = channel.readline()")
    told = "say(b'{\"ready\": {\"pid\": %d}}' % (b'changed' in duty))\n"
    monkeypatch.setattr(
        kept_child, "PROGRAM", (sys.executable, "-c", program + told + UNTIL_THE_END)
    )

    async def main() -> None:
        ready, start = Ready(), asyncio.create_subprocess_exec
        duty = Duty("broker-7", Settings())

        async def starting(*args: Any, **kwargs: Any) -> Any:
            nonlocal duty
            process = await start(*args, **kwargs)
            duty = Duty("broker-7", Settings(clusterName="changed"))
            child.restart()  # it cannot be told yet
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)
        child = KeptChild("broker-7", lambda: duty, ready.hear)
        child.start()
        assert await ready.next() == 1
        await child.stop(20)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("role", "ours", "found"), [("bookie", "", 32 << 20), ("bookie", "7", 7), ("broker-7", "", 0)]
)
def test_the_bookies_process_keeps_the_memory_that_it_frees(
    kept: Callable[..., None], monkeypatch: pytest.MonkeyPatch, role: str, ours: str, found: int
) -> None:
    async def scenario(_: KeptChild, ready: Ready) -> None:
        assert await ready.next() == found

    name = "MALLOC_TRIM_THRESHOLD_"
    monkeypatch.delenv(name, raising=False)
    if ours:
        monkeypatch.setenv(name, ours)
    threshold = f"int(os.environ.get({name!r}, 0))"
    kept(READY.replace("os.getpid()", threshold) + UNTIL_THE_END, scenario, role=role)


def test_a_role_is_given_up_if_a_check_says_that_no_restart_helps(
    kept: Callable[..., None],
) -> None:
    given_up: asyncio.Queue[ConfigError] = asyncio.Queue()

    def check() -> None:
        raise ConfigError("the data are gone")

    async def scenario(child: KeptChild, ready: Ready) -> None:
        os.kill(await ready.next(), signal.SIGKILL)
        async with asyncio.timeout(30):
            assert str(await given_up.get()) == "the data are gone"
        assert (child.pid, ready.told.empty()) == (0, True)

    kept(READY + UNTIL_THE_END, scenario, check=check, given_up=given_up.put_nowait)


@pytest.mark.parametrize(
    ("vital", "lasts", "ends"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_vital_role_is_given_up_if_its_reason_lasts(
    kept: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    vital: bool,
    lasts: bool,
    ends: bool,
) -> None:
    monkeypatch.setattr(kept_child, "HOPELESS_STARTS", 3)
    heard: asyncio.Queue[dict[str, Any] | ConfigError] = asyncio.Queue()
    starts = tmp_path / "starts"
    # The first one is ready, the fifth one as well; those between say why they cannot be.
    program = f"""
with open({str(starts)!r}, "a") as file:
    number = file.write("x") and file.tell()
if number in (1, 5):
    {READY.strip()}
    {UNTIL_THE_END}
else:
    say(b'{{"error": "no such store", "lasts": {str(lasts).lower()}}}')
"""

    async def scenario(child: KeptChild, _: Ready) -> None:
        await heard.get()
        os.kill(child.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            last = await heard.get()
        assert (str(last) == "broker-7: no such store") == ends
        assert len(starts.read_text()) == (4 if ends else 5)

    def hear(_: Ready, told: dict[str, Any]) -> None:
        heard.put_nowait(told)

    kept(program, scenario, hear, vital=vital, given_up=heard.put_nowait)


def test_a_report_that_cannot_be_kept_does_not_end_it(kept: Callable[..., None]) -> None:
    async def scenario(child: KeptChild, ready: Ready) -> None:
        await ready.next()
        await child.first
        assert child.pid

    def full(self: Ready, told: dict[str, Any]) -> None:
        self.told.put_nowait(told)
        raise OSError("No space left on device")

    kept(READY + UNTIL_THE_END, scenario, full)


def test_one_that_stands_still_is_killed(
    kept: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_child, "BEAT_SECONDS", 0.01)

    async def scenario(_: KeptChild, ready: Ready) -> None:
        assert await ready.next() != await ready.next()

    kept(READY + UNTIL_THE_END, scenario)


HANGS = "time.sleep(600)"


def test_one_that_never_says_that_it_is_ready_is_killed_and_the_start_fails(
    kept: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_child, "BEAT_SECONDS", 0.02)

    async def scenario(child: KeptChild, _: Ready) -> None:
        with pytest.raises(
            ConfigError, match=r"broker-7 \(process \d+\) .* within 1 s.*processStartTimeoutSeconds"
        ):
            await child.first

    kept(HANGS, scenario, settings=Settings(processStartTimeoutSeconds=1))


def test_one_that_hangs_while_it_is_started_again_is_killed_and_the_next_one_is_tried(
    kept: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(kept_child, "BEAT_SECONDS", 0.02)
    monkeypatch.setattr(kept_child, "SILENT_BEATS_MAX", 10_000)

    async def scenario(_: KeptChild, ready: Ready) -> None:
        os.kill(await ready.next(), signal.SIGKILL)
        await ready.next()

    second = f"""
with open({str(tmp_path / "starts")!r}, "a") as file:
    if file.write("x") and file.tell() == 2:
        {HANGS}
"""
    kept(second + READY + UNTIL_THE_END, scenario, settings=Settings(processStartTimeoutSeconds=1))
    assert sum("raise processStartTimeoutSeconds" in text for text in caplog.messages) == 1


def test_one_that_says_nonsense_is_killed(kept: Callable[..., None]) -> None:
    async def scenario(_: KeptChild, ready: Ready) -> None:
        assert await ready.next() != await ready.next()

    kept(READY + "say(b'{')\n" + UNTIL_THE_END, scenario)


def test_one_that_does_not_stop_is_killed(kept: Callable[..., None]) -> None:
    async def scenario(child: KeptChild, ready: Ready) -> None:
        await ready.next()
        await child.stop(0.1)

    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    kept(ignores + READY + "while True: channel.readline() or time.sleep(1)", scenario)
