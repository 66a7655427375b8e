"""Publish, stream, exactly-once sink, consume: driver or broker are killed at random moments.

With several brokers any of their processes is killed, and the bookies' one; of a cluster
ZooKeeper, too."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from tests.support.chain import Row, differences
from tests.support.local_cluster import LocalCluster
from tests.support.process_tree import kill_tree
from tests.support.python_client import connected
from tests.support.several_brokers import is_alive, kill, spread
from tests.support.standalone import Standalone

LONG = [pytest.mark.chaos, pytest.mark.long]

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("chain_driver.py")
SETTINGS = {
    "PULSARK_brokerDeduplicationEnabled": "true",
    "PULSARK_defaultNumberOfNamespaceBundles": "16",
    "PULSARK_brokerDeduplicationEntriesInterval": "100",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "300",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_sealFreshnessSeconds": "2",
}
PRODUCERS, KEYS = 3, 40
SOURCE, SOURCE_PARTITIONS = "persistent://public/default/chain-source", 4
SINK, SINK_PARTITIONS = "persistent://public/default/chain-sink", 3
DRAIN_SECONDS = 600.0
"""A batch takes some seconds, and three minutes where others want ten times the processors."""

Id = tuple[int, int, int, int]
"""Partition, ledger, entry, index in the batch: ids of a partition are in its order."""


class Publisher(threading.Thread):
    """A producer that numbers its messages, so that what it sends again is stored once."""

    def __init__(self, client: pulsar.Client, name: str, rng: random.Random) -> None:
        super().__init__(name=name, daemon=True)
        self._rng = rng
        self._end = threading.Event()
        self.confirmed = 0
        self.failed: list[pulsar.Result] = []
        self._producer = client.create_producer(
            SOURCE,
            producer_name=name,
            batching_enabled=rng.random() < 0.7,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
            send_timeout_millis=0,
        )

    def run(self) -> None:
        sequence = 0
        while not self._end.wait(0.02):
            for _ in range(self._rng.randrange(1, 5)):
                row = Row(self.name, sequence, f"k{self._rng.randrange(KEYS)}")
                self._producer.send_async(
                    row.encode(), self._answered, partition_key=row.key, sequence_id=sequence
                )
                sequence += 1
        self._producer.flush()

    def finish(self) -> int:
        """Send no more; how many there are."""
        self._end.set()
        self.join(DRAIN_SECONDS)
        assert not self.is_alive(), f"{self.name} does not end"
        assert not self.failed
        return self.confirmed

    def _answered(self, result: pulsar.Result, _: object) -> None:
        if result == pulsar.Result.Ok:
            self.confirmed += 1
        else:
            self.failed.append(result)


class Consumer(threading.Thread):
    """Receives and acknowledges a topic for as long as the chain runs."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        super().__init__(name=f"consumer of {topic}", daemon=True)
        self._consumer = client.subscribe(topic, "live")
        self._end = threading.Event()
        self.seen: dict[Id, Row] = {}
        self.changed: list[Id] = []
        """What was received again and was another message then."""

    def run(self) -> None:
        while not self._end.is_set():
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            row, place = Row.parse(message.data()), identify(message)
            if self.seen.setdefault(place, row) != row:
                self.changed.append(place)
            self._consumer.acknowledge(message)

    def finish(self) -> list[Row]:
        """Stop; everything in the topic's order."""
        self._end.set()
        self.join(DRAIN_SECONDS)
        assert not self.changed
        return [row for _, row in sorted(self.seen.items())]


def identify(message: pulsar.Message) -> Id:
    found = message.message_id()
    return found.partition(), found.ledger_id(), found.entry_id(), found.batch_index()


class Driver:
    """The Spark application with its JVM and Python workers."""

    def __init__(self, broker: Standalone, directory: Path) -> None:
        self._log = directory / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, str(DRIVER), broker.service_url, broker.web_url, SOURCE, SINK,
                    str(directory / "checkpoint"),
                ],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == b"started\n", f"the driver ended:\n{self._log.read_text()[-4000:]}"

    def check(self) -> None:
        assert self._process.poll() is None, f"the query ended:\n{self._log.read_text()[-4000:]}"

    def kill(self) -> None:
        if self._process.poll() is None:
            kill_tree(self._process.pid)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def read_all(client: pulsar.Client, topic: str, partitions: int) -> list[Row]:
    """Everything in a topic as it is stored."""
    rows = []
    for partition in range(partitions):
        name = f"{topic}-partition-{partition}"
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            rows.append(Row.parse(reader.read_next(10_000).data()))
        reader.close()
    return rows


def wait_for(condition: Callable[[], bool], driver: Driver, what: str) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while not condition():
        driver.check()
        assert time.monotonic() < deadline, f"not within {DRAIN_SECONDS:.0f} s: {what}"
        time.sleep(0.05)


def backlog(broker: Standalone) -> int:
    path = SOURCE.replace("://", "/")
    stats = AdminClient(broker.web_url).get(f"/{path}/partitioned-stats")
    return int(stats["subscriptions"]["chain"]["msgBacklog"])


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "kind", "brokers"),
    [
        pytest.param(2, Standalone, 1, id="two"),
        pytest.param(100, Standalone, 1, id="hundred", marks=LONG),
        pytest.param(60, Standalone, 3, id="sixty-at-three-brokers", marks=LONG),
        pytest.param(20, LocalCluster, 2, id="twenty-at-a-cluster", marks=LONG),
    ],
)
def test_each_message_is_there_once_and_in_order(
    kills: int, kind: type[Standalone], brokers: int, tmp_path: Path
) -> None:
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    victims = ["driver", "broker"] * (kills // 2)
    rng.shuffle(victims)
    with ExitStack() as stack:
        words = ["--brokers", str(brokers)] if brokers > 1 else []
        broker = stack.enter_context(kind(tmp_path / "data", *words, env=SETTINGS))
        admin = AdminClient(broker.web_url)
        for topic, partitions in ((SOURCE, SOURCE_PARTITIONS), (SINK, SINK_PARTITIONS)):
            admin.call("PUT", f"/{topic.replace('://', '/')}/partitions", partitions)
        client = stack.enter_context(connected(broker))
        if brokers > 1:
            parts = range(SOURCE_PARTITIONS)
            client.create_producer(SOURCE).close()
            spread(broker, [f"{SOURCE.rpartition('/')[2]}-partition-{each}" for each in parts])
        client.subscribe(SINK, "keep").close()  # what is read at the end stays
        source, sink = Consumer(client, SOURCE), Consumer(client, SINK)
        publishers = [
            Publisher(client, f"p{number}", random.Random(rng.random()))
            for number in range(PRODUCERS)
        ]
        for thread in (source, sink, *publishers):
            thread.start()
        driver = Driver(broker, tmp_path)
        stack.callback(lambda: driver.kill())
        for victim in victims:
            if rng.random() < 0.7:  # else while it starts, or makes its first batch
                known = len(sink.seen)
                wait_for(lambda n=known: len(sink.seen) > n, driver, "rows come")  # type: ignore[misc]
            time.sleep(rng.uniform(0.0, 2.0))
            driver.check()
            print(f"{victim} is killed with {len(sink.seen)} rows in the sink")
            if victim == "driver":
                driver.kill()
                driver = Driver(broker, tmp_path)
            elif brokers > 1:  # the supervisor starts it again
                kill(rng.choice(sorted(filter(is_alive, broker.processes().values()))))
            else:
                broker.kill()
                broker.start()
        sent = {publisher.name: publisher.finish() for publisher in publishers}
        total = sum(sent.values())
        wait_for(lambda: len(source.seen) >= total, driver, "all is in the source")
        wait_for(lambda: len(sink.seen) >= total, driver, "all is in the sink")
        wait_for(lambda: backlog(broker) == 0, driver, "the query has acknowledged all")
        stored = read_all(client, SINK, SINK_PARTITIONS)
        logs = {"source": source.finish(), "sink": stored, "consumer": sink.finish()}
        assert differences(sent, logs) == []
        assert min(sent.values()) > 100
