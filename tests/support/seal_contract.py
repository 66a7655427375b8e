"""What each runner of sealing promises: the broker's own process, and the Spark job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pulsar
import pytest

from pulsark.jobs.job import Context
from pulsark.jobs.runner import run_program
from pulsark.jobs.seal_ledgers import JOB
from pulsark.runtime import OsDisk
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.tables import attached_files, check_files

PARTITIONS, MESSAGES = 3, 300
SETTINGS = {
    "PULSARK_managedLedgerMaxEntriesPerLedger": "7",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_sealFreshnessSeconds": "2",
}
BOOKIES = ("--bookies", "3")

Seal = Callable[[Standalone, str], None]
"""Lets a runner seal all there is of a topic; returns when it did."""


def seals_every_message_once_on_every_root(broker: Standalone, seal: Seal) -> None:
    """Rows on all roots are equal and what was sent; consumers get what they got before."""
    admin(broker, "PUT", "/admin/v2/persistent/public/default/contract/partitions", PARTITIONS)
    publish(broker, "contract", 0, MESSAGES)
    before = consumed(broker, "contract", "before", MESSAGES)
    seal(broker, "contract")
    roots = tables(broker)
    assert len(roots) == 3
    logs = [attached_files(OsDisk(), str(root)) for root in roots]
    assert logs[0] == logs[1] == logs[2]
    for root in roots:
        check_files(OsDisk(), str(root), logs[0][1])
    assert sum(file.rows for file in logs[0][1]) == MESSAGES
    assert consumed(broker, "contract", "after", MESSAGES) == before
    publish(broker, "contract", MESSAGES, 10)
    seal(broker, "contract")
    assert sum(file.rows for file in attached_files(OsDisk(), str(roots[0]))[1]) == MESSAGES + 10
    assert consumed(broker, "contract", "again", MESSAGES + 10)[0] == before[0]
    attaches = attached_files(OsDisk(), str(roots[0]))[0]
    seal(broker, "contract")
    assert attached_files(OsDisk(), str(roots[0]))[0] == attaches, "there was nothing to be sealed"


def run_job(broker: Standalone, topic: str, spark: Any) -> int:
    """The job on a Spark session, or what stands in for one, for a topic or for all there are."""
    words = ["--everything", "--task-mb", "1", *(["--topic", topic] if topic else [])]
    words += ["--service-url", broker.service_url, "--admin-url", broker.web_url]
    return run_program(JOB, words, Context(JOB.name, given_spark=spark))


class NoSpark:
    """Stands in for a session: runs the tasks here, one after the other."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._items: list[Any] = []

    def parallelize(self, items: Any, slices: int) -> NoSpark:
        assert len(items) == slices
        self._items = list(items)
        return self

    def map(self, work: Callable[[Any], Any]) -> NoSpark:
        self._items = [work(item) for item in self._items]
        return self

    def collect(self) -> list[Any]:
        return self._items


def publish(broker: Standalone, topic: str, first: int, count: int) -> None:
    with connected(broker) as client:
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=5,
            message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        )
        for i in range(first, first + count):
            producer.send_async(
                b"value %d" % i, None, partition_key=f"k{i}", properties={"n": str(i)}
            )
        producer.flush()


def consumed(broker: Standalone, topic: str, name: str, count: int) -> list[tuple[Any, ...]]:
    """All messages that are there, by id; asserts that they are ``count``."""
    found = []
    with connected(broker) as client:
        consumer = client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(count):
            message = consumer.receive(60_000)
            i = message.message_id()
            place = i.partition(), i.ledger_id(), i.entry_id(), i.batch_index()
            found.append((place, message.data(), message.partition_key(), message.properties()))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(200)
    assert len({row[0] for row in found}) == count
    return sorted(found, key=lambda row: row[0])


def tables(broker: Standalone) -> list[Path]:
    """The table's directory on each root."""
    pattern = "bookies/*/ledgers/table/*/*/*/_delta_log"
    return sorted(log.parent for log in broker.data_dir.glob(pattern))


def rows(root: Path) -> int:
    return sum(file.rows for file in attached_files(OsDisk(), str(root))[1])


def admin(broker: Standalone, method: str, path: str, body: Any = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json"}
    request = Request(broker.web_url + path, data, headers, method=method)
    with urlopen(request, timeout=120) as answer:
        text = answer.read()
    return json.loads(text) if text else None
