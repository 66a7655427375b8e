"""What several broker processes cost, and bring: ``python -m benchmarks.scaling [--check]``.

Publishes to as many topics as there are brokers in the largest ``standalone --brokers N``, from a
Java client for each topic, to one standalone after the other: the rate, the cores that its
processes use, and the processor time of a message. With as many brokers as cores the rate should
not be lower than with one, although clients and bookie want the same cores, and a message may cost
15 % more: it passes one process more on its way to the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers import Pulsark
from benchmarks.fairness import started
from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.load import LoadClient
from benchmarks.usage import processor_seconds

COST_RATIO = 1.15
RATE_RATIO = 1.0
KINDS: dict[str, dict[str, object]] = {
    "batched": {"batching": True, "pending": 0, "size": 1024},
    "unbatched": {"batching": False, "pending": 1000, "size": 1024},
}
TRIED = 1000
"""Names that are looked up until each broker serves one."""


class Standalone(Pulsark):
    """With some broker processes."""

    def __init__(self, home: Path, brokers: int) -> None:
        super().__init__(home)
        self.brokers = brokers

    def _command(self) -> list[str]:
        return [*super()._command(), *self._flags()]

    def _flags(self) -> list[str]:
        return ["--brokers", str(self.brokers)] if self.brokers > 1 else []

    def pids(self) -> list[int]:
        """Those of all its processes."""
        info = json.loads((self.home / "data" / "standalone.json").read_text())
        bookie = [info["bookiePid"]] if "bookiePid" in info else []
        return [info["pid"], *bookie, *(broker["pid"] for broker in info.get("brokers", []))]

    def topics(self, count: int, prefix: str) -> list[str]:
        """New ones, spread over the brokers as evenly as can be."""
        of_owner: dict[str, list[str]] = {}
        for number in range(TRIED):
            name = f"{prefix}-{number}"
            url = f"{self.admin_url}/lookup/v2/topic/persistent/public/default/{name}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                owner = json.load(answer)["brokerUrl"]
            of_owner.setdefault(owner, []).append(f"persistent://public/default/{name}")
            most = -(-count // self.brokers)
            found = [name for names in of_owner.values() for name in names[:most]]
            if len(of_owner) == self.brokers and len(found) >= count:
                return found[:count]
        raise RuntimeError(f"{TRIED} topics are served by {len(of_owner)} of {self.brokers}")


class Run(NamedTuple):
    """One measurement."""

    rate: float
    """Messages a second, of all topics."""
    cores: float
    """That the processes of the standalone used."""
    cost: float
    """Seconds of processor time of a message."""


def measure(
    standalone: Standalone, clients: Sequence[LoadClient], kind: str, number: int, seconds: float
) -> Run:
    """Publish to a topic with each client at the same time."""
    topics = standalone.topics(len(clients), f"{kind}-{number}")
    os.sync()
    pids = standalone.pids()
    used, begun = sum(map(processor_seconds, pids)), time.monotonic()
    for client, topic in zip(clients, topics, strict=True):
        client.begin("publish", url=standalone.url, topic=topic, seconds=seconds, **KINDS[kind])
    answers = [client.end() for client in clients]
    took = time.monotonic() - begun
    standalone.check()
    used = sum(map(processor_seconds, pids)) - used
    rate = sum(answer["messages"] / answer["seconds"] for answer in answers)
    return Run(rate, used / took, used / sum(answer["messages"] for answer in answers))


def compare(chosen: argparse.Namespace, home: Path) -> list[Goal]:
    """One line for each number of brokers, and the goals of the largest beside one."""
    most = max(chosen.brokers)
    found: dict[tuple[str, int], list[Run]] = {}
    with ExitStack() as stack:
        clients = [LoadClient() for _ in range(most)]
        for client in clients:
            stack.callback(client.close)
        for number in range(-chosen.warm_up, chosen.rounds):
            for brokers in chosen.brokers if number % 2 == 0 else chosen.brokers[::-1]:
                standalone = Standalone(home / f"{brokers}", brokers)
                try:
                    started(standalone)
                    for kind in KINDS:
                        measure(standalone, clients, kind, -1, chosen.seconds / 2)
                        run = measure(standalone, clients, kind, 0, chosen.seconds)
                        print(f"{_shown(kind, brokers, run)}{'' if number >= 0 else ' (warm-up)'}")
                        if number >= 0:
                            found.setdefault((kind, brokers), []).append(run)
                finally:
                    standalone.stop()
    print()
    goals = []
    for kind in KINDS:
        middle = {}
        for brokers in chosen.brokers:
            runs = found[kind, brokers]
            middle[brokers] = Run(*map(statistics.median, zip(*runs, strict=True)))
            print(_shown(kind, brokers, middle[brokers]))
        one, many = middle[min(chosen.brokers)], middle[most]
        label = f"{kind}, {most} brokers over {min(chosen.brokers)}"
        goals.append(Goal(f"rate {label}", many.rate / one.rate, "at least", RATE_RATIO))
        goals.append(Goal(f"cost {label}", many.cost / one.cost, "at most", COST_RATIO))
    return goals


def _shown(kind: str, brokers: int, run: Run) -> str:
    return (
        f"{kind:<10} {brokers} broker{'s' if brokers > 1 else ' '} {run.rate / 1e3:8.1f} k/s "
        f"{run.cores:6.2f} cores {1e6 * run.cost:8.2f} us a message"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    cores = os.cpu_count() or 2
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, max(2, cores)])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement")
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-scaling-") as home:
        return exit_code(compare(chosen, Path(home)), chosen.check)


if __name__ == "__main__":
    sys.exit(main())
