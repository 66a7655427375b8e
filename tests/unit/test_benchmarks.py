"""What the command lines of benchmarks share."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import three_copies, usage
from benchmarks.brokers import Pulsark, alone
from benchmarks.goals import add_check, add_scenarios

WITH_A_CHILD = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(flush=True)
sys.stdin.read()
"""
"""A process that lives with its child until its input ends."""


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_scenarios(parser, {"fast": 1, "slow": 2})
    add_check(parser)
    return parser.parse_args(arguments)


def test_without_names_all_scenarios_run() -> None:
    assert parsed("--check").scenarios == ["fast", "slow"]
    assert parsed("slow").scenarios == ["slow"]


def test_an_unknown_scenario_is_named_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parsed("fats")
    assert "'fats' is none of fast, slow" in capsys.readouterr().err


class _Running(Pulsark):
    """Two processes in place of those of a broker."""

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WITH_A_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> None:
        assert self._process is not None
        self._process.communicate()

    def states(self) -> list[str]:
        """How its processes are: "T" is stopped."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        stats = [Path(f"/proc/{pid}/stat").read_text() for pid in (self.pid, *children)]
        return [stat.rsplit(")", 1)[1].split()[0] for stat in stats]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[_Running]]:
    running = [_Running(tmp_path / name) for name in ("a", "b")]
    for each in running:
        each.start()
    yield running
    for each in running:
        each.end()


def test_nothing_of_another_broker_runs_while_one_is_measured(two: list[_Running]) -> None:
    measured, other = two
    with alone(measured, two):
        for _ in range(100_000):  # the signals are on their way
            if other.states() == ["T", "T"]:
                break
            os.sched_yield()
        assert other.states() == ["T", "T"]
        assert "T" not in measured.states()
    assert "T" not in other.states()


@pytest.mark.parametrize("way", three_copies.WAYS)
def test_a_relay_sends_three_whole_copies(way: str) -> None:
    relay, receiver = three_copies.measure(way, 5000, 3 * three_copies.RING_ENTRIES)
    assert relay > 0
    assert receiver > 0


def test_servers_that_both_sides_use_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two cores, for 10 s: the broker takes 4 s, the client 2, a bookie 5, something else 1."""
    taken = {1: 4.0, 2: 2.0, 3: 5.0}
    now = 0.0
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(usage.time, "monotonic", lambda: now)
    monkeypatch.setattr(usage, "idle_seconds", lambda: 0.8 * now)
    monkeypatch.setattr(usage, "_disk_seconds", lambda device: 0.0)
    monkeypatch.setattr(usage, "_thread_seconds", lambda pid: {str(pid): taken[pid] * now / 10.0})
    meter = usage.Meter([1], 2, Path(), [3])
    now = 10.0
    found = meter.read()
    assert (found.broker, found.client, found.idle) == pytest.approx((0.4, 0.2, 0.8))
    assert found.others == pytest.approx(0.1)
