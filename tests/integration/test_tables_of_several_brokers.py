"""Tables of topics whose partitions several broker processes own, as another engine reads them."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pulsar
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pulsark.runtime import OsDisk
from pulsark.storage.table.staging.staged_ledger import STAGING
from tests.support.python_client import connected
from tests.support.several_brokers import kill, spread, wait_for
from tests.support.staged import stage
from tests.support.standalone import Standalone
from tests.support.tables import entry

TOPIC = "persistent://public/default/p"
PATH = "/admin/v2/persistent/public/default/p"
PARTITIONS = 8
MESSAGES = 400
PUBLISHES = 12
SETTINGS = {
    "PULSARK_sealEnabled": "true",
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_defaultNumberOfNamespaceBundles": "16",
}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Standalone]:
    standalone = Standalone(tmp_path / "data", "--brokers", "2", env=SETTINGS)
    with standalone:
        asked(standalone, "PUT", f"{PATH}/partitions", PARTITIONS)
        with connected(standalone) as client:
            client.create_producer(TOPIC).close()  # now each bundle has an owner
        spread(standalone, [f"p-partition-{number}" for number in range(PARTITIONS)])
        yield standalone


def asked(standalone: Standalone, method: str, path: str, body: Any = None) -> Any:
    """What the admin API of any broker answers."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = Request(standalone.web_url + path, data, headers, method=method)
    with urlopen(request, timeout=60) as response:
        content = response.read()
    return json.loads(content) if content else None


def publish(client: pulsar.Client, first: int) -> list[bytes]:
    """Messages in all partitions; returns their payloads."""
    producer = client.create_producer(
        TOPIC,
        batching_enabled=False,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
    )
    payloads = [b"%d" % number for number in range(first, first + MESSAGES)]
    for payload in payloads:
        producer.send_async(payload, lambda _result, _id: None)
    producer.flush()
    producer.close()
    return payloads


def consumed(client: pulsar.Client, name: str, count: int) -> dict[bytes, str]:
    """The ids of all messages, from the earliest on, by payload."""
    consumer = client.subscribe(TOPIC, name, initial_position=pulsar.InitialPosition.Earliest)
    found = {}
    for _ in range(count):
        message = consumer.receive(20_000)
        found[message.data()] = str(message.message_id())
    consumer.close()
    return found


def rows(standalone: Standalone) -> list[bytes]:
    """The values in the table, as far as it is there."""
    try:
        table = DeltaTable(asked(standalone, "GET", f"{PATH}/table")["uri"])
    except (OSError, TableNotFoundError):  # or a broker was killed just now
        return []
    values = table.to_pyarrow_table(columns=["value"])["value"]
    return sorted(values.to_pylist())


def owners(standalone: Standalone) -> set[str]:
    """The Flight ports of the brokers that have the partitions."""
    plan = asked(standalone, "GET", f"{PATH}/segments")
    return {part.get("flightUrl", plan["flightUrl"]) for part in plan["partitions"]}


def test_the_table_is_whole_and_the_ids_stay(two: Standalone) -> None:
    with connected(two) as client:
        sent = publish(client, 0)
        ids = consumed(client, "before", MESSAGES)
        assert len(owners(two)) == 2
        asked(two, "POST", f"{PATH}/seal")
        assert rows(two) == sorted(sent)
        assert consumed(client, "after", MESSAGES) == ids
        sent += publish(client, MESSAGES)
        wait_for(lambda: len(rows(two)) >= len(sent), 60)  # by themselves
        assert rows(two) == sorted(sent)
        assert consumed(client, "at-last", len(sent)).keys() == set(sent)


def test_brokers_are_killed_while_they_seal(two: Standalone) -> None:
    sent: list[bytes] = []
    with connected(two) as client:
        for number in range(2):
            sent += publish(client, number * MESSAGES)
            wait_for(lambda: bool(rows(two)))
            kill(two.processes()[f"broker-{number % 2}"])
        assert consumed(client, "s", len(sent)).keys() == set(sent)  # and so it is loaded again
        wait_for(lambda: len(rows(two)) >= len(sent), 60)
        assert rows(two) == sorted(sent)


def test_brokers_are_killed_while_spark_writes(two: Standalone) -> None:
    """What a bulk publish brings is in all partitions, once, and in the table."""
    staging = asked(two, "GET", f"{PATH}/bulkPublish")
    roots = [directory.removesuffix(f"/{STAGING}") for directory in staging["directories"]]
    published: list[int] = []

    def publish_all() -> None:
        for number in range(PUBLISHES):
            ledgers = [
                stage(OsDisk(), roots, n, [entry(number)], f"q{number}p{n}").to_json()
                for n in range(PARTITIONS)
            ]
            body = {"topicId": staging["topicId"], "partitions": PARTITIONS, "ledgers": ledgers}
            until = time.monotonic() + 60
            while len(published) == number:
                try:
                    asked(two, "PUT", f"{PATH}/bulkPublish/q/{number}", body)
                except (OSError, HTTPException):  # asked again, it is published once
                    assert time.monotonic() < until
                    time.sleep(0.05)
                else:
                    published.append(number)

    thread = threading.Thread(target=publish_all)
    thread.start()
    for number in range(2):
        at = len(published) + 2
        wait_for(lambda at=at: len(published) >= at)
        kill(two.processes()[f"broker-{number}"])
    thread.join(60)
    assert published == list(range(PUBLISHES))
    assert len(rows(two)) == PUBLISHES * PARTITIONS
    with connected(two) as client:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        found = [consumer.receive(20_000).data() for _ in range(PUBLISHES * PARTITIONS)]
    assert Counter(found) == {b"value %d" % number: PARTITIONS for number in range(PUBLISHES)}
