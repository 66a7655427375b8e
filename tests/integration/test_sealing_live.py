"""Messages move into the table of their topic; consumers see no difference."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pulsar
import pytest
from deltalake import DeltaTable

from tests.support.hurried import HURRIED
from tests.support.python_client import connect
from tests.support.standalone import Standalone

SETTINGS = {
    **HURRIED,
    "PULSARK_sealEnabled": "true",
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "40",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "PULSARK_journalMaxSizeMB": "1",
}
MESSAGES = 2000
WAIT_SECONDS = 60.0


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    with Standalone(tmp_path / "data", env=SETTINGS) as process:
        yield process


def publish(standalone: Standalone, topic: str, first: int, count: int, *, batched: bool) -> None:
    client = connect(standalone)
    producer = client.create_producer(
        topic,
        batching_enabled=batched,
        batching_max_messages=7,
        compression_type=pulsar.CompressionType.ZSTD,
        message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution,
        block_if_queue_full=True,
    )
    for i in range(first, first + count):
        producer.send_async(
            f"value {i} ".encode() * 50,
            lambda result, _: None,
            partition_key=f"key-{i % 100}",
            ordering_key=f"o{i % 3}",
            properties={"n": str(i), "origin": "JFK"},
            event_timestamp=1_700_000_000_000 + i,
        )
    producer.flush()
    client.close()


def consumed(standalone: Standalone, topic: str, name: str, count: int) -> list[Any]:
    """All that a consumer can see of each message, from Earliest, by id."""
    client = connect(standalone)
    consumer = client.subscribe(
        topic, name, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=100
    )
    found = []
    for _ in range(count):
        message = consumer.receive(60_000)
        place = message.message_id()
        found.append(
            (
                (place.partition(), place.ledger_id(), place.entry_id(), place.batch_index()),
                message.data(),
                message.partition_key(),
                message.ordering_key(),
                message.properties(),
                message.event_timestamp(),
                message.publish_timestamp(),
                message.producer_name() if hasattr(message, "producer_name") else None,
                message.redelivery_count(),
            )
        )
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()
    return sorted(found, key=lambda row: row[0])


def tables(standalone: Standalone) -> list[Path]:
    root = standalone.data_dir / "bookies" / "bookie-1" / "ledgers" / "table"
    return [log.parent for log in root.glob("*/*/*/_delta_log")]


def rows_in_tables(standalone: Standalone) -> int:
    return sum(
        int(pl.scan_delta(str(table)).select(pl.len()).collect().item())
        for table in tables(standalone)
        if (table / "_delta_log" / f"{1:020d}.json").exists()
    )


def wait_until_sealed(standalone: Standalone, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := rows_in_tables(standalone)) < count:
        assert time.monotonic() < deadline, f"{found} rows of {count}"
        time.sleep(0.2)
    assert found == count


def segments(standalone: Standalone) -> set[str]:
    journal = standalone.data_dir / "bookies" / "bookie-1" / "journal"
    return {path.name for path in journal.glob("*.journal")}


def wait_until_released(standalone: Standalone, old: set[str]) -> None:
    """The journal has none of these segments any more."""
    deadline = time.monotonic() + WAIT_SECONDS
    while left := segments(standalone) & old:
        assert time.monotonic() < deadline, f"{sorted(left)} are still there"
        time.sleep(0.1)


def test_consumers_get_from_the_table_what_was_in_the_journal(standalone: Standalone) -> None:
    topic = "flights"
    publish(standalone, topic, 0, MESSAGES, batched=True)
    publish(standalone, topic, MESSAGES, 100, batched=False)
    count = MESSAGES + 100
    before = consumed(standalone, topic, "before", count)
    wait_until_sealed(standalone, count)
    old = segments(standalone)
    standalone.stop()
    standalone.start()
    assert consumed(standalone, topic, "after", count) == before
    wait_until_released(standalone, old)  # the topic is loaded again
    standalone.kill()
    standalone.start()
    publish(standalone, topic, count, 50, batched=True)
    across = consumed(standalone, topic, "across", count + 50)
    assert across[:count] == before
    wait_until_sealed(standalone, count + 50)

    (table,) = tables(standalone)
    files = DeltaTable(str(table)).file_uris()
    query = "SELECT count(*), count(DISTINCT properties['n']) FROM read_parquet(?)"
    assert duckdb.execute(query, [files]).fetchone() == (count + 50, count + 50)
    frame = pl.read_delta(str(table))
    assert frame["key"].n_unique() == 100
    ids = frame.select("ledger_id", "entry_id", "batch_index").rows()
    assert sorted(ids) == [row[0][1:] for row in across]
