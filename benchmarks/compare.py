"""Pulsark beside Apache Pulsar: the same client, the same settings, alternately.

``python -m benchmarks.compare`` (the first part of ``make bench``) starts both brokers over empty
directories, warms both, and takes every measure in alternation; the median counts. ``--check``
exits 1 when a ratio misses its threshold. ``--before COMMIT`` puts an earlier commit in Apache
Pulsar's place: then nothing may be slower, or larger, by more than 3 %. ``--set KEY=VALUE`` is a
setting of Pulsark, of both commits. ``--v5`` publishes with Pulsar 5's client, beside Apache Pulsar
5.0.0-M1. ``--cluster`` compares two brokers of each make over the same three bookies.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import Broker, Pulsar, Pulsar5, Pulsark, alone
from benchmarks.clusters import PulsarkOfCluster, PulsarOfCluster, Servers
from benchmarks.credentials import Certificate
from benchmarks.load import LOCK, SOURCE, V5_LOCK, V5_SOURCE, LoadClient, LoadError
from benchmarks.report import Row, machine, resources, table
from benchmarks.scenarios import (
    CLUSTER_NAMES,
    CLUSTER_SCENARIOS,
    NAMES,
    SCENARIOS,
    START,
    V5_NAMES,
    V5_SCENARIOS,
    Measure,
    Scenario,
)
from benchmarks.usage import Meter, Usage, idle_seconds, processors_seconds, resident_bytes

EVERY = (*SCENARIOS, *V5_SCENARIOS, *CLUSTER_SCENARIOS)
FIRST_ACK_SECONDS = 180.0
SETTLE_SECONDS = 4.0
"""After this long idle, the memory of either broker moves by less than 2 %."""
SEALED_SECONDS = 25.0
"""Pulsark begins to seal what came by then."""
REST_SECONDS_MAX = 60.0
LOOK_SECONDS = 2.0
RESTING_CORES = 0.2
"""That are used on a machine where nothing goes on."""


def _progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


class Comparison:
    """The run of one command line: both brokers, the load client, and the rows so far."""

    def __init__(self, arguments: argparse.Namespace, home: Path) -> None:
        self._arguments = arguments
        self._home = home
        peer: Broker = (Pulsar5 if arguments.v5 else Pulsar)(home / "peer")
        settings = dict(arguments.set)
        if arguments.before:
            peer = Pulsark(home / "peer", arguments.before, **settings)
        own: Broker = Pulsark(home / "pulsark", **settings)
        self._servers: Servers | None = None
        if arguments.cluster:
            self._servers = Servers(home / "servers")
            of_peer = home / "peer", self._servers
            if arguments.before:
                peer = PulsarkOfCluster(*of_peer, commit=arguments.before, **settings)
            else:
                peer = PulsarOfCluster(*of_peer)
            own = PulsarkOfCluster(home / "pulsark", self._servers, **settings)
        sides: dict[str, Broker] = {"pulsark": own, "pulsar": peer}
        self._peer_name = peer.name
        self._brokers = [b for name, b in sides.items() if arguments.side in ("both", name)]
        self._load = LoadClient(*((V5_SOURCE, V5_LOCK) if arguments.v5 else (SOURCE, LOCK)))
        self._topics = 0
        self.rows: list[Row] = []

    def run(self) -> None:
        """Measure everything that was asked for."""
        if self._servers is not None:
            self._servers.start()
        for broker in self._brokers:
            broker.prepare()
        self._warm_client()
        if "start" in self._arguments.only:
            self._measure_starts()
        chosen = [each for each in EVERY if each.name in self._arguments.only]
        if any(scenario.tls for scenario in chosen):
            certificate = Certificate.make(self._home)
            for broker in self._brokers:
                broker.certificate = certificate
        if chosen:
            for broker in self._brokers:
                self._start(broker)
            for number, scenario in enumerate(chosen):
                if number:
                    self._rest()
                self._measure(scenario)

    def close(self) -> None:
        """Stop all processes and remove their data."""
        for broker in self._brokers:
            broker.stop()
        self._load.close()
        if self._servers is not None:
            self._servers.stop()

    def _rows_of(self, measures: Sequence[Measure]) -> list[Row]:
        chosen = [m.against_before() for m in measures] if self._arguments.before else measures
        return [Row(measure, self._peer_name) for measure in chosen]

    def _topic(self) -> str:
        self._topics += 1
        return f"persistent://public/default/bench-{self._topics}"

    def _start(self, broker: Broker) -> float:
        """Start a broker; seconds until a message was acknowledged."""
        begun = time.monotonic()
        broker.start()
        limit = FIRST_ACK_SECONDS
        self._load.begin("first", url=broker.url, topic=self._topic(), seconds=limit)
        try:
            self._load.end()
        except Exception:
            broker.check()
            raise
        return time.monotonic() - begun

    def _warm_client(self) -> None:
        """Let the client's JVM load and compile its classes before a start is timed."""
        if "start" in self._arguments.only:
            broker = self._brokers[0]
            self._start(broker)
            for _ in range(5):
                url, topic = broker.url, self._topic()
                self._load.call("first", url=url, topic=topic, seconds=FIRST_ACK_SECONDS)
            broker.stop()

    def _rest(self) -> None:
        """Let both sides do what the scenario before has left them: no other pays for that."""
        time.sleep(SEALED_SECONDS)
        limit, used = time.monotonic() + REST_SECONDS_MAX, math.inf
        while used > RESTING_CORES and time.monotonic() < limit:
            idle = idle_seconds()
            time.sleep(LOOK_SECONDS)
            used = (os.cpu_count() or 1) - (idle_seconds() - idle) / LOOK_SECONDS

    def _measure_starts(self) -> None:
        rows = self._rows_of(START)
        for round_number in range(self._arguments.rounds):
            for broker in self._brokers:
                os.sync()
                first = self._start(broker)
                time.sleep(SETTLE_SECONDS)
                memory = resident_bytes(broker.pid)
                broker.stop()
                answer = {"first": first, "memory": float(memory)}
                for row in rows:
                    row.add(broker.name, row.measure.value(answer))
                numbers = f"first ack {first:.2f} s, idle memory {memory / 1e6:.0f} MB"
                _progress(f"start {round_number + 1} {broker.name}: {numbers}")
        self.rows += rows

    def _measure(self, scenario: Scenario) -> None:
        rows = self._rows_of(scenario.measures)
        options = {**scenario.options, **(scenario.quick if self._arguments.quick else {})}
        topics = {broker.name: self._topic() for broker in self._brokers}
        failed: dict[str, str] = {}
        if scenario.prepare:
            for broker in self._brokers:
                where = {"url": broker.url, "topic": topics[broker.name]}
                with self._noted(scenario, broker, failed):
                    count = options["count"]
                    self._load.call(scenario.prepare, **where, size=1024, count=count)
        warm_up = self._arguments.warm_up
        for round_number in range(warm_up + self._arguments.rounds):
            for broker in self._brokers:
                if broker.name in failed:
                    continue
                topic = topics[broker.name] if scenario.prepare else self._topic()
                with self._noted(scenario, broker, failed):
                    answer, usage = self._run_once(scenario, broker, topic, options, round_number)
                if broker.name in failed:
                    continue
                if round_number >= warm_up:
                    for row in rows:
                        row.add(broker.name, row.measure.value(answer), usage)
                kind = "warm-up" if round_number < warm_up else "run"
                values = [f"{m.label} {m.value(answer):.3g} {m.unit}" for m in scenario.measures]
                _progress(f"{kind} {broker.name}: {', '.join(values)} ({usage.limit})")
        for row in rows:
            row.failed |= failed
        self.rows += rows

    @contextmanager
    def _noted(self, scenario: Scenario, broker: Broker, failed: dict[str, str]) -> Iterator[None]:
        """What a side cannot do costs it this scenario, not the run. It has to be up again then."""
        try:
            yield
        except LoadError as e:
            failed[broker.name] = str(e)
            _progress(f"FAILED {scenario.name} {broker.name}: {e}")
            _progress(broker.log_end())
            if self._servers is not None:
                _progress(self._servers.log_ends())
            if not broker.is_running:
                broker.end()
                self._start(broker)

    def _run_once(
        self,
        scenario: Scenario,
        broker: Broker,
        topic: str,
        options: dict[str, object],
        round_number: int,
    ) -> tuple[dict[str, float], Usage]:
        if self._servers is not None:
            self._servers.settle()
        os.sync()  # so that a run does not pay for what the one before left in the page cache
        extra = {"subscription": f"s{round_number}"} if scenario.subscription else {}
        where = broker.tls_options if scenario.tls else {"url": broker.url}
        with alone(broker, self._brokers):
            meter = Meter(broker.pids, self._load.pid, broker.home, self._bookies)
            before = self._seconds(broker)
            answer = self._load.call(scenario.command, topic=topic, **where, **options, **extra)
            usage = meter.read()
            spent = {key: now - before[key] for key, now in self._seconds(broker).items()}
            return answer | spent, usage

    def _seconds(self, broker: Broker) -> dict[str, float]:
        """Processor time so far of a side's brokers, and of the bookies that both sides share."""
        return {
            "broker_seconds": processors_seconds(broker.pids),
            "bookie_seconds": processors_seconds(self._bookies),
        }

    @property
    def _bookies(self) -> list[int]:
        return [] if self._servers is None else self._servers.bookie_pids


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 below a threshold")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--only", action="append", help="one scenario; repeatable")
    parser.add_argument("--v5", action="store_true", help="Pulsar 5: its client, beside its broker")
    told = "two brokers over ZooKeeper and three bookies, beside two of Pulsar over the same ones"
    parser.add_argument("--cluster", action="store_true", help=told)
    parser.add_argument("--side", choices=("both", "pulsark", "pulsar"), default="both")
    parser.add_argument("--before", metavar="COMMIT", help="compare with this commit, not Pulsar")
    parser.add_argument("--set", metavar="KEY=VALUE", type=_pair, action="append", default=[])
    parser.add_argument("--rounds", type=int, help="alternations that count (5; quick: 2)")
    parser.add_argument("--warm-up", type=int, help="alternations before them (3; quick: 1)")
    parser.add_argument("--data-dir", type=Path, help="where the brokers write (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all samples")
    parsed = parser.parse_args(arguments)
    names = V5_NAMES if parsed.v5 else CLUSTER_NAMES if parsed.cluster else NAMES
    parsed.only = parsed.only or list(names)
    if unknown := set(parsed.only) - set(names):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(names)}")
    parsed.rounds = parsed.rounds or (2 if parsed.quick else 5)
    if parsed.warm_up is None:
        parsed.warm_up = 1 if parsed.quick else 3
    return parsed


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: write KEY=VALUE")
    return key, value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; the exit code."""
    parsed = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-bench-", dir=parsed.data_dir) as directory:
        home = Path(directory)
        comparison = Comparison(parsed, home)
        ended = ""
        try:
            comparison.run()
        except (LoadError, RuntimeError) as e:
            ended = f"\nnot all was measured: {e}"
        finally:
            comparison.close()
        where = machine(home)
    rows = comparison.rows
    print(f"\n{where}; {parsed.rounds} alternations\n\n{table(rows)}\n\n{resources(rows)}")
    if parsed.json:
        document = {"machine": where, "rows": [row.as_json() for row in rows]}
        parsed.json.write_text(json.dumps(document, indent=1) + "\n")
    missed = [row.measure.label for row in rows if not row.passed]
    if missed:
        print(f"\nbelow the threshold, or not measured: {', '.join(missed)}")
    print(ended, end="\n" if ended else "")
    return 1 if ended or (missed and parsed.check) else 0


if __name__ == "__main__":
    sys.exit(main())
