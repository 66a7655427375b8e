"""Random schemas evolve under each strategy; Spark, the table and the official client agree.

Each value is shown exactly, or it is null and the payload is beside it. The core takes a seed and
runs with Spark in seconds; `tests/unit/rows/test_evolving_schemas.py` runs many more without.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import pulsar
import pytest
from deltalake import DeltaTable
from pulsar.schema import AvroSchema

from pulsark.schemas.definition import SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from tests.support.evolving_schemas import Evolution, for_client, is_shown
from tests.support.hurried import HURRIED
from tests.support.python_client import connected
from tests.support.standalone import Standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = SchemaCompatibilityStrategy
WAIT_SECONDS = 90.0
VALUES = 5
"""Messages of each version."""

SETTINGS = {
    **HURRIED,
    "PULSARK_sealFreshnessSeconds": "1",
    "PULSARK_managedLedgerMaxEntriesPerLedger": "3",
    "PULSARK_managedLedgerMinLedgerRolloverTimeMinutes": "0",
}


def as_rows(value: Any) -> Any:
    """Return what Spark gives in Python's own types."""
    if hasattr(value, "asDict"):
        return {key: as_rows(item) for key, item in value.asDict().items()}
    if isinstance(value, list):
        return [as_rows(item) for item in value]
    if isinstance(value, dict):
        return {key: as_rows(item) for key, item in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def publish(broker: Standalone, topic: str, evolution: Evolution) -> list[dict[str, Any]]:
    """Publish values of each version with the official client; it reads the same back."""
    sent = []
    with connected(broker) as client:
        reading = client.subscribe(topic, "official", schema=pulsar.schema.BytesSchema())
        for definition in evolution.definitions:
            schema = AvroSchema(None, schema_definition=definition)
            producer = client.create_producer(topic, schema=schema, batching_enabled=False)
            values = [evolution.value(definition) for _ in range(VALUES)]
            for value in values:
                producer.send(for_client(definition, value))
            producer.close()
            for value in values:
                found = reading.receive(timeout_millis=20_000)
                assert found.data() == evolution.payload(definition, value)
                reading.acknowledge(found)
            sent += values
    return sent


def check(sent: list[dict[str, Any]], rows: list[dict[str, Any]], raw: str) -> None:
    for value, row in zip(sent, rows, strict=False):
        shown = row.get("value", row)
        if shown is None or not is_shown(value, shown):
            assert row[raw] is not None, f"{value} is shown as {row}, and its payload is lost"


def check_table(broker: Standalone, sent: list[dict[str, Any]], topic_number: int) -> None:
    root = broker.data_dir / "bookies" / "bookie-1" / "ledgers" / "table"
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        tables = sorted(root.glob("*/*/*/_delta_log"), key=lambda path: path.stat().st_ctime)
        found = []
        if len(tables) > topic_number:
            table = DeltaTable(str(tables[topic_number].parent)).to_pyarrow_table()
            order = [("ledger_id", "ascending"), ("entry_id", "ascending")]
            found = table.sort_by(order).to_pylist()
        if len(found) >= len(sent) - 3:
            return check(sent, found, "value_raw")
        assert time.monotonic() < deadline, f"{len(found)} of {len(sent)} rows are in the table"
        time.sleep(0.5)


def run(broker: Standalone, spark: SparkSession, seed: int, strategy: S, number: int) -> None:
    url = f"{broker.web_url}/admin/v2/namespaces/public/default/schemaCompatibilityStrategy"
    body = json.dumps(strategy.value).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, body, headers, method="PUT")):
        pass
    evolution = Evolution(seed, SchemaType.AVRO, strategy)
    topic = f"evolves-{strategy.value.lower()}-{seed}"
    sent = publish(broker, topic, evolution)
    auto = (
        spark.read.format("pulsark")
        .options(serviceUrl=broker.service_url, adminUrl=broker.web_url, valueFormat="auto")
        .load(topic)
        .orderBy("__ledgerId", "__entryId")
        .collect()
    )
    assert len(auto) == len(sent)
    check(sent, [as_rows(row) for row in auto], "__valueRaw")
    check_table(broker, sent, number)


@pytest.mark.spark
def test_a_schema_that_evolves(tmp_path: Path, spark: SparkSession) -> None:
    with Standalone(tmp_path / "data", env=SETTINGS) as broker:
        run(broker, spark, 3, S.ALWAYS_COMPATIBLE, 0)
        run(broker, spark, 1, S.BACKWARD, 1)


@pytest.mark.spark
@pytest.mark.strangers
@pytest.mark.parametrize("strategy", [each for each in S if each is not S.UNDEFINED])
def test_schemas_evolve_under_each_strategy(
    tmp_path: Path, spark: SparkSession, strategy: S
) -> None:
    with Standalone(tmp_path / "data", env=SETTINGS) as broker:
        for number, seed in enumerate(range(10, 18)):
            run(broker, spark, seed, strategy, number)
