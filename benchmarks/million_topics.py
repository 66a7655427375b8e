"""A million topics in the metadata store: ``python -m benchmarks.million_topics [--check]``.

Their records are written into the file of a standalone that has stopped, as it would have written
them; then it starts again. Measured are the time until it answers, how long lookups of topics take
that nobody has touched, what a topic costs in memory that was loaded once and unloaded, and how
long another client's PING waits while the chores of the first minute run.

With ``--store zk:HOST:PORT/PATH`` the metadata are in that ZooKeeper. ``--store zk`` starts one on
this machine, with as much memory as ``--heap`` says: a million topics take about 3 GB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.brokers import Pulsark
from benchmarks.fairness import Client, Command, Pings, Waits, started
from benchmarks.goals import Goal, add_check, exit_code
from benchmarks.usage import processor_seconds, resident_bytes
from pulsark.metadata.paths import managed_ledger_path
from pulsark.metadata.sqlite_file import checksum
from pulsark.metadata.store import ABSENT
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.runtime import Runtime
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

NAMESPACE = "public/million"
BUNDLES = 64
READY_SECONDS = 10.0
LOOKUP_P99_SECONDS = 0.005
UNLOADED_BYTES = 300.0
PING_P99_SECONDS = 0.050
SEED = 1
ROUND = 3000
"""Topics that are unloaded together."""
WRITTEN_AT_ONCE = 5000
COLLECT_SECONDS = 3.0
COLLECTING = """
import gc, signal
from pulsark.cli import main
signal.signal(signal.SIGUSR1, lambda *_: gc.collect())
main()
"""


class Collecting(Pulsark):
    """It collects garbage when it is told to."""

    def _command(self) -> list[str]:
        python, _, _, *arguments = super()._command()
        return [python, "-c", COLLECTING, *arguments]


def name_of(number: int) -> str:
    """Of a topic."""
    return f"persistent://{NAMESPACE}/topic-{number:07d}"


def prepare(broker: Pulsark, topics: int, store: str) -> None:
    """A stopped standalone with so many topics in its metadata."""
    started(broker)
    call(broker, "PUT", f"namespaces/{NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
    client = Client(broker.port)
    client.send(produce(0, 1))
    client.take(Command.PRODUCER_SUCCESS)
    client.socket.close()
    broker.end()
    if store:
        asyncio.run(write_to_zookeeper(store, topics))
        return
    file = sqlite3.connect(broker.home / "data" / "metadata.db")
    with file:
        rows = records(managed_ledger_path(TopicName.parse(name_of(0))), topics)
        file.executemany(
            "INSERT INTO node VALUES (?, ?, ?, 0, 0, ?)",
            (
                (parent, name, value, checksum(parent, name, value, 0, 0))
                for parent, name, value in rows
            ),
        )
    file.close()


async def write_to_zookeeper(url: str, topics: int) -> None:
    """The same, by the store's own commits."""
    from pulsark.metadata.zookeeper.address import parse_zookeeper
    from pulsark.metadata.zookeeper.store import ZooKeeperMetadataStore

    store = await ZooKeeperMetadataStore.open(parse_zookeeper(url), Runtime(), create=False)
    begun = time.monotonic()
    rows = records(managed_ledger_path(TopicName.parse(name_of(0))), topics)
    while some := list(itertools.islice(rows, WRITTEN_AT_ONCE)):
        await asyncio.gather(
            *(store.put(f"{parent}/{name}", value, ABSENT) for parent, name, value in some)
        )
    took = time.monotonic() - begun
    print(f"{topics / took:,.0f} topics a second written to ZooKeeper", flush=True)
    await store.close()


def records(path: str, topics: int) -> Iterator[tuple[str, str, bytes]]:
    """Those of the managed ledgers of all topics but the first, whose path is given."""
    parent, _, first = path.rpartition("/")
    for number in range(1, topics):
        name = name_of(number).rpartition("/")[2]
        assert len(name) == len(first)
        record = {
            "version": 1,
            "topicId": uuid.UUID(int=number).hex,
            "createdMs": 1_700_000_000_000 + number,
            "state": "OPEN",
            "ledgers": [],
            "trimmed": [-1, -1],
            "removing": [],
            "properties": {},
        }
        value = json.dumps(record, separators=(",", ":")).encode()
        yield parent, name, value


def call(broker: Pulsark, method: str, path: str, body: object = None) -> None:
    """One call of the admin API."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    url = f"{broker.admin_url}/admin/v2/{path}"
    request = urllib.request.Request(url, content, headers, method=method)
    urllib.request.urlopen(request, timeout=120).close()


def produce(number: int, producer_id: int) -> pb.BaseCommand:
    """Open a producer on a topic."""
    command = Command(type=Command.PRODUCER)
    request = command.producer
    request.topic, request.producer_id, request.request_id = name_of(number), producer_id, 1
    return command


def look_up(client: Client, number: int) -> float:
    """How long it takes."""
    command = Command(type=Command.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = name_of(number), number
    begun = time.monotonic()
    client.send(command)
    client.take(Command.LOOKUP_RESPONSE)
    return time.monotonic() - begun


def unload_each(broker: Pulsark, numbers: Sequence[int]) -> None:
    """Open a producer on each topic, close it, and unload the namespace."""
    client = Client(broker.port)
    for number in numbers:
        client.send(produce(number, number))
        client.take(Command.PRODUCER_SUCCESS)
    client.socket.close()
    call(broker, "PUT", f"namespaces/{NAMESPACE}/unload")


def collected(broker: Pulsark) -> int:
    """Its memory, without garbage that it would collect once there is much of it."""
    os.kill(broker.pid, signal.SIGUSR1)
    time.sleep(COLLECT_SECONDS)
    return resident_bytes(broker.pid)


@contextlib.contextmanager
def store_of(chosen: argparse.Namespace, home: Path) -> Iterator[str]:
    """The URL of the metadata store; empty is a file."""
    if chosen.store != "zk":
        yield chosen.store
        return
    server = ZooKeeperServer(home / "zookeeper", heap=chosen.heap)
    server.start()
    try:
        asyncio.run(server.ready())
        yield f"zk:{server.address}/million"
        print(f"ZooKeeper has {resident_bytes(server.process.pid) >> 20} MiB", flush=True)
    finally:
        server.process.stop()


def measure(chosen: argparse.Namespace, home: Path, store: str) -> list[Goal]:
    """All of it, in one run."""
    broker = Collecting(home / "broker", metadataStoreUrl=store)
    print(f"writing {chosen.topics:,} topics", flush=True)
    prepare(broker, chosen.topics, store)
    begun = time.monotonic()
    broker.again()
    client = _first_client(broker)
    ready = time.monotonic() - begun
    try:
        print(f"ready after {ready:.1f} s, {resident_bytes(broker.pid) >> 20} MiB", flush=True)
        rng = random.Random(SEED)
        for number in rng.sample(range(chosen.topics), BUNDLES * 8):  # claims all bundles
            look_up(client, number)
        before = resident_bytes(broker.pid)
        lookups = [look_up(client, n) for n in rng.sample(range(chosen.topics), chosen.lookups)]
        print(f"lookups: {shown(Waits.of(lookups))}", flush=True)
        looked_up = resident_bytes(broker.pid) - before
        print(f"they took {looked_up / chosen.lookups:,.0f} bytes each", flush=True)
        for first in (0, ROUND):  # what the first ones load: modules and pools of memory
            unload_each(broker, range(first, first + ROUND))
            before = collected(broker)
        for first in range(2 * ROUND, (2 + chosen.unloaded) * ROUND, ROUND):
            unload_each(broker, range(first, first + ROUND))
            after = collected(broker)
        unloaded = (after - before) / (chosen.unloaded * ROUND)
        used, begun = processor_seconds(broker.pid), time.monotonic()
        waits = Pings(broker.port).run(chosen.seconds)
        used, took = processor_seconds(broker.pid) - used, time.monotonic() - begun
        print(f"chores: {used / took:.1%} of a core; PING: {shown(waits)}", flush=True)
        broker.check()
    finally:
        broker.stop()
    return [
        Goal("seconds until a broker is ready", ready, "at most", READY_SECONDS),
        Goal("lookup p99, s", Waits.of(lookups).p99, "at most", LOOKUP_P99_SECONDS),
        Goal("bytes of a topic that was unloaded", unloaded, "at most", UNLOADED_BYTES),
        Goal("PING p99 beside the chores, s", waits.p99, "at most", PING_P99_SECONDS),
    ]


def _first_client(broker: Pulsark) -> Client:
    while True:
        broker.check()
        try:
            return Client(broker.port)
        except (OSError, EOFError):
            time.sleep(0.05)


def shown(waits: Waits) -> str:
    """In milliseconds."""
    return (
        f"p50 {1e3 * waits.median:.2f} ms, p99 {1e3 * waits.p99:.2f} ms, "
        f"longest {1e3 * waits.longest:.1f} ms"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--lookups", type=int, default=5_000)
    parser.add_argument("--unloaded", type=int, default=5, help=f"rounds of {ROUND} topics each")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which chores are watched")
    parser.add_argument("--store", default="", help="zk, or zk:HOST:PORT/PATH; else a file")
    parser.add_argument("--heap", default="4g", help="that of the ZooKeeper that is started")
    add_check(parser)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsark-million-") as home:
        with store_of(chosen, Path(home)) as store:
            goals = measure(chosen, Path(home), store)
        return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
