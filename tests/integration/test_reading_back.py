"""Clients cross the border between journal and table, and cannot tell where it is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pulsar
import pytest
from deltalake import DeltaTable

import pulsark
from examples.flights import flights as demo
from tests.integration.test_sealing_live import (
    segments,
    tables,
    wait_until_sealed,
)
from tests.support.hurried import HURRIED
from tests.support.python_client import connected
from tests.support.seal_contract import admin
from tests.support.standalone import Standalone

SETTINGS = {
    **HURRIED,
    "PULSARK_managedLedgerMaxEntriesPerLedger": "20",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_journalMaxSizeMB": "1",
}
COUNT, BATCH = 240, 5
SEALED = 200
"""The others are in the journal."""


def publish(standalone: Standalone, first: int, end: int) -> None:
    with connected(standalone) as client:
        producer = client.create_producer(
            "border",
            batching_enabled=True,
            batching_max_messages=BATCH,
            batching_max_publish_delay_ms=60_000,
        )
        for i in range(first, end):
            producer.send_async(b"%d" % i, None, partition_key=f"k{i % 7}")
            if i % BATCH == BATCH - 1:
                producer.flush()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    data = tmp_path_factory.mktemp("border") / "data"
    with Standalone(data, env=SETTINGS) as process:
        publish(process, 0, SEALED)
        wait_until_sealed(process, SEALED)
        policy = "/admin/v2/namespaces/public/default/sealing"
        admin(process, "POST", policy, {"enabled": False})
        publish(process, SEALED, COUNT)
        yield process


@pytest.fixture
def client(standalone: Standalone) -> Iterator[pulsar.Client]:
    with connected(standalone) as client:
        yield client


def ids(client: pulsar.Client) -> list[pulsar.MessageId]:
    reader = client.create_reader("border", pulsar.MessageId.earliest)
    return [reader.read_next(60_000).message_id() for _ in range(COUNT)]


def numbers(receive: Any, count: int) -> list[int]:
    return [int(receive(60_000).data()) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.feature("F12")
def test_a_new_subscription_from_earliest(client: pulsar.Client) -> None:
    consumer = client.subscribe("border", "new", initial_position=pulsar.InitialPosition.Earliest)
    assert numbers(consumer.receive, COUNT) == list(range(COUNT))


@pytest.mark.parametrize("start", [0, 3, SEALED - 1, SEALED, SEALED + 4, SEALED + 9, SEALED + 17])
def test_a_reader_by_message_id(client: pulsar.Client, start: int) -> None:
    place = ids(client)[start]
    after = client.create_reader("border", place)
    assert numbers(after.read_next, COUNT - start - 1) == list(range(start + 1, COUNT))
    at = client.create_reader("border", place, start_message_id_inclusive=True)
    assert numbers(at.read_next, COUNT - start) == list(range(start, COUNT))


def test_a_seek_into_the_past_and_back(client: pulsar.Client) -> None:
    consumer = client.subscribe("border", "seeker", start_message_id_inclusive=True)
    for start in (SEALED + 5, 17, SEALED - 5, 0):
        consumer.seek(ids(client)[start])
        assert numbers(consumer.receive, COUNT - start) == list(range(start, COUNT))
    reader = client.create_reader("border", pulsar.MessageId.latest)
    first = client.create_reader("border", pulsar.MessageId.earliest).read_next(60_000)
    reader.seek(first.publish_timestamp())
    assert numbers(reader.read_next, COUNT) == list(range(COUNT))


def test_acknowledgements_on_both_sides_survive_a_restart(standalone: Standalone) -> None:
    with connected(standalone) as client:
        consumer = client.subscribe(
            "border",
            "acks",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        for _ in range(COUNT):
            message = consumer.receive(60_000)
            entry = int(message.data()) // BATCH
            if entry % 3:
                consumer.acknowledge(message)
    standalone.stop()
    standalone.start()
    with connected(standalone) as client:
        consumer = client.subscribe("border", "acks", consumer_type=pulsar.ConsumerType.Shared)
        left = [i for i in range(COUNT) if (i // BATCH) % 3 == 0]
        assert sorted(numbers(consumer.receive, len(left))) == left
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)


def test_a_table_that_cannot_be_read_now_stalls_nobody_else(standalone: Standalone) -> None:
    with connected(standalone) as client:
        behind = client.subscribe(
            "border", "stalled", initial_position=pulsar.InitialPosition.Earliest
        )
        assert int(behind.receive(60_000).data()) == 0
        child = reading_process(standalone)
        os.kill(child, signal.SIGSTOP)
        try:
            far = client.subscribe(
                "border", "far", initial_position=pulsar.InitialPosition.Earliest
            )
            live = client.subscribe("live", "s")
            producer = client.create_producer("live")
            for i in range(100):
                producer.send(b"%d" % i)
                assert int(live.receive(60_000).data()) == i
        finally:
            os.kill(child, signal.SIGCONT)
        assert numbers(far.receive, COUNT) == list(range(COUNT))
        assert numbers(behind.receive, COUNT - 1) == list(range(1, COUNT))


def reading_process(standalone: Standalone) -> int:
    """The table process that was started last: the one that reads."""
    children = Path(f"/proc/{standalone.pid}/task/{standalone.pid}/children").read_text().split()
    return max(map(int, children))


FLIGHTS = 336_776


@pytest.mark.parametrize(
    "count", [12_000, pytest.param(FLIGHTS, marks=pytest.mark.chaos)], ids=["some", "all"]
)
def test_the_flights_are_the_same_before_and_after(tmp_path: Path, count: int) -> None:
    """Published, sealed, the journal trimmed, the broker restarted."""
    env = {**HURRIED, "PULSARK_sealFreshnessSeconds": "1", "PULSARK_journalMaxSizeMB": "1"}
    if count < FLIGHTS:
        env |= {"PULSARK_managedLedgerMaxEntriesPerLedger": "50"}
        env |= {"PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0"}
    with Standalone(tmp_path / "data", env=env) as broker:
        demo.publish_flights(
            broker.service_url, "flights", demo.read_flights().head(count), lambda _: None
        )
        before = seen(broker, "before", count)
        wait_until_sealed(broker, count)
        old = segments(broker)
        broker.stop()
        broker.start()
        assert seen(broker, "after", count) == before
        deadline = time.monotonic() + 60
        while segments(broker) & old:
            assert time.monotonic() < deadline, "the journal keeps what is sealed"
            time.sleep(0.2)
        assert seen(broker, "trimmed", count) == before
        (table,) = tables(broker)
        files = DeltaTable(str(table)).file_uris()
        carriers = "SELECT key, count(*) FROM read_parquet(?) GROUP BY key ORDER BY key"
        by_duckdb = duckdb.execute(carriers, [files]).fetchall()
        by_polars = pl.scan_delta(str(table)).group_by("key").len().sort("key").collect().rows()
        assert by_duckdb == by_polars
        assert sum(number for _, number in by_duckdb) == count
        if count == FLIGHTS:
            spark = pulsark.session("flights", config={"spark.ui.enabled": "false"})
            rows = spark.read.format("delta").load(str(table)).groupBy("key").count().collect()
            assert sorted(map(tuple, rows)) == by_duckdb
            spark.stop()


def seen(broker: Standalone, name: str, count: int) -> dict[tuple[int, int, int], tuple[Any, ...]]:
    """What a consumer from Earliest sees of each flight, by its id."""
    found = {}
    with connected(broker) as client:
        consumer = client.subscribe(
            "flights", name, initial_position=pulsar.InitialPosition.Earliest
        )
        for _ in range(count):
            message = consumer.receive(60_000)
            place = message.message_id()
            found[place.ledger_id(), place.entry_id(), place.batch_index()] = (
                message.data(),
                message.partition_key(),
                message.properties(),
                message.event_timestamp(),
                message.publish_timestamp(),
            )
    assert len(found) == count
    return found
