"""What sealing costs and gives: ``python -m benchmarks.sealing latency|freshness|catch-up``.

``latency`` publishes at a steady rate to a broker that seals, by the default policy, and to one
that does not, in alternation: the ratio of the 99th percentiles. ``freshness`` publishes at a
steady rate with the default policy, and asks of every message how old it was when the commit that
shows it to plain Delta readers was there. ``catch-up`` reads the flights, several times over, with
the Java client from Pulsark, all of them sealed, and from Apache Pulsar, both restarted and with
the caches of the kernel dropped. ``--check`` exits 1 if a number misses its threshold.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pulsar
import pyarrow.parquet as pq

from benchmarks.brokers import Broker, Pulsar, Pulsark
from benchmarks.goals import Goal, add_check, add_scenarios, exit_code
from benchmarks.load import LoadClient
from examples.flights.flights import publish_flights, read_flights
from pulsark.storage.table.log.delta_log import parse_commit

LATENCY_RATIO = 1.3
FRESHNESS_SECONDS = 30.0
CATCH_UP_RATIO = 1.5
START_SECONDS = 60.0


class Sealing(Pulsark):
    """Pulsark whose tables can be looked at."""

    def tables(self) -> list[Path]:
        """The logs of all tables."""
        return list(self.home.glob("data/bookies/*/ledgers/table/*/*/*/_delta_log"))

    def rows(self) -> int:
        """Rows of all tables."""
        return sum(rows for log in self.tables() for _, rows, _ in commits(log))


def commits(log: Path) -> list[tuple[float, int, list[Path]]]:
    """For each commit when it was there (epoch seconds), its rows and its files."""
    found = []
    for path in sorted(log.glob("*.json")):
        adds = [a["add"] for a in parse_commit(path.read_bytes(), str(path)) if "add" in a]
        rows = sum(json.loads(add["stats"])["numRecords"] for add in adds)
        found.append((path.stat().st_mtime, rows, [log.parent / add["path"] for add in adds]))
    return found


def publish(url: str, topic: str, rate: float, seconds: float, size: int) -> list[float]:
    """Publish at a steady rate; how long each message took, in seconds."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    taken: list[float] = []
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        while (now := time.perf_counter()) < due:
            time.sleep(min(due - now, 0.001))
        # From when it was due: a stall counts for all who waited.
        producer.send_async(
            os.urandom(size), lambda *_, due=due: taken.append(time.perf_counter() - due)
        )
    producer.flush()
    client.close()
    return taken


def wait_for(broker: Broker, topic: str) -> None:
    """Until the broker takes messages."""
    wait_until_it_listens(broker)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            publish(broker.url, topic, 100, 0.01, 10)
        except Exception:
            broker.check()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


def wait_until_it_listens(broker: Broker) -> None:
    """Until somebody takes connections."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", broker.port)) == 0:
                return
        broker.check()
        time.sleep(0.2)
    raise RuntimeError(f"{broker.name} does not listen")


def latency(chosen: argparse.Namespace, home: Path) -> Goal:
    """The 99th percentile of publishing with sealing, over that without.

    The warm-up is long enough for the first seal, which starts the table process.
    """
    found: dict[str, list[float]] = {"on": [], "off": []}
    for number in range(chosen.rounds):
        for name in ("on", "off") if number % 2 == 0 else ("off", "on"):
            broker = Sealing(home / name, sealEnabled=str(name == "on").lower())
            broker.start()
            wait_for(broker, "first")
            publish(broker.url, "warm", chosen.rate, chosen.warm_up, chosen.size)
            taken = publish(broker.url, "topic", chosen.rate, chosen.seconds, chosen.size)
            p99 = statistics.quantiles(taken, n=100)[98] * 1e3
            p50 = statistics.median(taken) * 1e3
            print(
                f"sealing {name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {broker.rows()} rows sealed"
            )
            found[name].append(p99)
            broker.stop()
    ratio = statistics.median(found["on"]) / statistics.median(found["off"])
    return Goal("publish p99, sealing on / off", ratio, "at most", LATENCY_RATIO)


def freshness(chosen: argparse.Namespace, home: Path) -> Goal:
    """Ages of messages when the commit with them was there, with the default policy."""
    broker = Sealing(home / "fresh")
    broker.start()
    wait_for(broker, "first")
    publish(broker.url, "topic", chosen.rate, chosen.seconds, chosen.size)
    wanted, deadline = int(chosen.rate * chosen.seconds), time.monotonic() + 120
    while broker.rows() < wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    ages: list[float] = []
    for log in broker.tables():
        for there, _, files in commits(log):
            for file in files:
                published = pq.ParquetFile(file).read(columns=["publish_time"]).column(0)
                ages += [there - t.timestamp() for t in published.to_pylist()]
    broker.stop()
    if len(ages) < wanted:
        raise RuntimeError(f"{len(ages)} of {wanted} messages are sealed")
    p95 = statistics.quantiles(ages, n=20)[18]
    print(
        f"freshness of {len(ages)} messages: p50 {statistics.median(ages):.1f} s, "
        f"p95 {p95:.1f} s, max {max(ages):.1f} s"
    )
    return Goal("freshness of the Delta table, p95, s", p95, "at most", FRESHNESS_SECONDS)


def catch_up(chosen: argparse.Namespace, home: Path) -> Goal:
    """Messages a second of a cold read of everything, Pulsark's over Pulsar's."""
    frame = read_flights().head(chosen.flights)
    count = len(frame) * chosen.times
    sealing = Sealing(home / "pulsark", sealFreshnessSeconds=2)
    brokers: list[Broker] = [sealing, Pulsar(home / "pulsar")]
    load = LoadClient()
    rates: dict[str, list[float]] = {}
    for broker in brokers:
        broker.prepare()
        broker.start()
        wait_for(broker, "first")
        # Kept for who comes later, on either side.
        hold(broker.url, "flights")
        for _ in range(chosen.times):
            publish_flights(broker.url, "flights", frame, lambda _: None)
        if broker is sealing:
            deadline = time.monotonic() + 300
            while sealing.rows() < count:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{sealing.rows()} of {count} flights are sealed")
                time.sleep(0.5)
        # The first round is not counted: it compiles the client's code, for whoever is first.
        for number in range(chosen.rounds + 1):
            restart(broker)
            drop_caches()
            wait_for(broker, "non-persistent://public/default/ready")
            load.call("disconnect", url=broker.url)
            answer = load.call(
                "catchup",
                url=broker.url,
                topic="persistent://public/default/flights",
                subscription=f"cold-{number}",
                count=count,
            )
            rate = answer["messages"] / answer["seconds"]
            if number:
                rates.setdefault(broker.name, []).append(rate)
            print(f"{broker.name}: {rate:,.0f} flights/s{'' if number else ', not counted'}")
        broker.stop()
    load.close()
    ratio = statistics.median(rates["Pulsark"]) / statistics.median(rates["Pulsar"])
    return Goal("cold catch-up, Pulsark / Pulsar", ratio, "at least", CATCH_UP_RATIO)


def hold(url: str, topic: str) -> None:
    """A subscription that never acknowledges: messages stay."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe(topic, "hold", initial_position=pulsar.InitialPosition.Earliest)
    client.close()


def restart(broker: Broker) -> None:
    """Stop a broker and start it again over its data."""
    process = broker._process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    with (broker.home / "broker.log").open("ab") as log:
        command = broker._command()
        broker._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=broker.home)


def drop_caches() -> None:
    """What the kernel holds of files goes, where that is allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        print(f"the caches of the kernel stay: {error}", file=sys.stderr)


SCENARIOS = {"latency": latency, "freshness": freshness, "catch-up": catch_up}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    add_scenarios(parser, SCENARIOS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=25.0, help="seconds before a latency")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--flights", type=int, default=336_776)
    parser.add_argument("--times", type=int, default=10, help="how often each flight is sent")
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-sealing-") as home:
        goals = [SCENARIOS[name](chosen, Path(home)) for name in chosen.scenarios]
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
