"""Work that may be late waits while clients keep the processors busy, but not for long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pulsark.storage.table.process import processors as processors_module
from pulsark.storage.table.process.processors import (
    HURRY_SECONDS,
    LOOK_SECONDS,
    WAIT_SECONDS_MAX,
    Processors,
    idle_seconds,
)
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation

CORES = os.cpu_count() or 1


class Machine:
    """Processors of which some are idle."""

    def __init__(self, sim: Simulation) -> None:
        self.clock = sim.runtime(SimDisk()).clock
        self.free: float = 0.0
        self.looks = 0
        self._at, self._idle = self.clock.monotonic(), 0.0

    def turn(self, free: float) -> None:
        self.idle()
        self.free = free

    def idle(self) -> float:
        self.looks += 1
        now = self.clock.monotonic()
        self._idle += self.free * (now - self._at)
        self._at = now
        return self._idle

    async def waited(self, processors: Processors) -> float:
        begun = self.clock.monotonic()
        await processors.spare()
        return self.clock.monotonic() - begun


def run(scenario: Callable[[Machine, Processors], Coroutine[Any, Any, None]]) -> None:
    sim = Simulation(0)
    machine = Machine(sim)

    async def main() -> None:
        await scenario(machine, Processors(machine.clock, machine.idle))

    sim.run(main())


def test_an_idle_machine_is_looked_at_once_for_many_pieces_of_work() -> None:
    async def scenario(machine: Machine, processors: Processors) -> None:
        machine.turn(CORES)
        assert await machine.waited(processors) == pytest.approx(LOOK_SECONDS)
        looks = machine.looks
        assert [await machine.waited(processors) for _ in range(1000)] == [0.0] * 1000
        assert machine.looks == looks, "of many processors it takes milliseconds"

    run(scenario)


@pytest.mark.parametrize("left", [0.0, 0.4 * min(CORES, 2)], ids=["nothing", "less than one"])
def test_a_burst_of_clients_has_all_of_them(left: float) -> None:
    async def scenario(machine: Machine, processors: Processors) -> None:

        machine.turn(left)
        asyncio.get_running_loop().call_later(3.0, machine.turn, CORES)
        assert 3.0 <= await machine.waited(processors) <= 3.0 + 2 * LOOK_SECONDS

    run(scenario)


def test_who_never_has_time_makes_others_wait_once_in_a_while() -> None:
    async def scenario(machine: Machine, processors: Processors) -> None:
        machine.turn(0.0)
        assert WAIT_SECONDS_MAX <= await machine.waited(processors) < WAIT_SECONDS_MAX + 0.5
        waits = []
        for _ in range(int(HURRY_SECONDS) + 1):
            waits.append(await machine.waited(processors))
            await asyncio.sleep(1.0)
        assert waits[:-1] == [0.0] * int(HURRY_SECONDS)
        assert waits[-1] >= WAIT_SECONDS_MAX

    run(scenario)


def test_where_the_system_does_not_say_nobody_waits() -> None:
    async def scenario(machine: Machine, _: Processors) -> None:
        assert await machine.waited(Processors(machine.clock, lambda: None)) == 0.0

    run(scenario)


@pytest.mark.parametrize("said", ["", "cpu\n", "cpu  0 0 0 0 0 0 0 0 0 0\n", "cpu  x x x x x x\n"])
def test_a_sandbox_does_not_say_although_it_has_the_file(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stat"
    file.write_text(said)
    monkeypatch.setattr(processors_module, "STAT", str(file))
    assert idle_seconds() is None
    file.write_text("cpu  10 20 30 400 100 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert idle_seconds() == 500 / os.sysconf("SC_CLK_TCK")
