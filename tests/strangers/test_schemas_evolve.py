"""Random schemas evolve under each strategy; Spark, the table and the official client agree.

Each value is shown exactly, or it is null and the payload is beside it. Avro, JSON and Protobuf are
published with the official client; key-value schemas, which it does not have, with raw frames. The
core takes a seed of each and runs with Spark in seconds; `tests/unit/rows/test_evolving_schemas.py`
runs many more without.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _pulsar
import pulsar
import pytest
from deltalake import DeltaTable
from pulsar.schema import AvroSchema, ProtobufNativeSchema

import pulsark
from pulsark.admin_client.client import AdminClient
from pulsark.schemas.definition import SchemaType
from pulsark.schemas.strategies import SchemaCompatibilityStrategy
from pulsark.wire import pulsar_pb2 as pb
from tests.support.evolving_messages import (
    KINDS,
    Evolving,
    PairEvolution,
    ProtobufEvolution,
    evolution_of,
)
from tests.support.evolving_schemas import for_client, is_shown
from tests.support.hurried import HURRIED
from tests.support.python_client import connected
from tests.support.standalone import Standalone
from tests.support.wire_client import WireClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = SchemaCompatibilityStrategy
VALUES = 5
"""Messages of each version."""

PROTOCOL_TYPES = {"KEY_VALUE": pb.Schema.KeyValue, "PROTOBUF": pb.Schema.Protobuf}


def as_rows(value: Any) -> Any:
    """Return what Spark gives in Python's own types."""
    if hasattr(value, "asDict"):
        return {key: as_rows(item) for key, item in value.asDict().items()}
    if isinstance(value, list):
        return [as_rows(item) for item in value]
    if isinstance(value, dict):
        return {key: as_rows(item) for key, item in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


class JsonDefinition(pulsar.schema.Schema):  # type: ignore[misc]
    """JSON whose schema is a definition and not a class."""

    def __init__(self, evolution: Evolving, definition: Any) -> None:
        super().__init__(dict, _pulsar.SchemaType.JSON, definition, "JSON")
        self._evolution, self._definition = evolution, definition

    def encode(self, value: Any) -> bytes:
        return self._evolution.payload(self._definition, value)

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def client_schema(evolution: Evolving, definition: Any) -> Any:
    """Return the official client's schema; None if it has none of the kind."""
    match evolution.kind:
        case SchemaType.AVRO:
            return AvroSchema(None, schema_definition=definition)
        case SchemaType.JSON:
            return JsonDefinition(evolution, definition)
        case SchemaType.PROTOBUF_NATIVE:
            assert isinstance(evolution, ProtobufEvolution)
            return ProtobufNativeSchema(evolution.class_of(definition))
    return None


def publish(
    broker: Standalone, client: pulsar.Client, topic: str, evolution: Evolving
) -> list[Any]:
    """Publish values of each version, and compare what the official client receives of them.

    Returns what readers show. Some of it is in the table before the schema changes.
    """
    sent = []
    reading = client.subscribe(topic, "official", schema=pulsar.schema.BytesSchema())
    for number, definition in enumerate(evolution.definitions):
        schema = client_schema(evolution, definition)
        values = [evolution.value(definition) for _ in range(VALUES)]
        if schema is None:
            publish_frames(broker, topic, evolution, definition, values)
        else:
            producer = client.create_producer(topic, schema=schema, batching_enabled=False)
            for value in values:
                is_avro = evolution.kind is SchemaType.AVRO
                producer.send(for_client(definition, value) if is_avro else value)
            producer.close()
        for value in values:
            found = reading.receive(timeout_millis=20_000)
            assert found.data() == evolution.payload(definition, value)
            if schema is not None:
                check_client(schema, found.data(), evolution.shown(definition, value), value)
            reading.acknowledge(found)
        sent += [evolution.shown(definition, value) for value in values]
        if number % 2 == 0:
            seal(broker, topic)
    reading.close()
    seal(broker, topic)
    return sent


def check_client(schema: Any, data: bytes, shown: Any, value: Any) -> None:
    """Compare what the official client decodes, unless Python has no such time."""
    try:
        decoded = schema.decode(data)
    except (OverflowError, ValueError):
        return
    if isinstance(schema, ProtobufNativeSchema):
        assert decoded == value
    else:
        assert is_shown(shown, decoded), (shown, decoded)


def publish_frames(
    broker: Standalone, topic: str, evolution: Evolving, definition: Any, values: list[Any]
) -> None:
    """Publish with the protocol itself what the official Python client has no schema for."""
    schema = evolution.schema(definition)
    command = pb.BaseCommand(type=pb.BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id = topic, 1
    command.producer.request_id = 1_000
    given = command.producer.schema
    given.name, given.schema_data = "s", schema.data
    given.type = PROTOCOL_TYPES[schema.type.name]
    for name, text in schema.properties.items():
        given.properties.add(key=name, value=text)
    with WireClient(broker.broker_port) as wire:
        answer = wire.request(command, pb.BaseCommand.PRODUCER_SUCCESS)
        more: dict[str, Any] = {"schema_version": answer.producer_success.schema_version}
        for number, value in enumerate(values):
            if isinstance(evolution, PairEvolution) and evolution.encoding == "SEPARATED":
                key, _ = evolution.parts(definition, value)
                more["partition_key"] = base64.b64encode(key).decode()
                more["partition_key_b64_encoded"] = True
            wire.publish(evolution.payload(definition, value), 1, number, **more)


def seal(broker: Standalone, topic: str) -> None:
    """Bring everything that was published into the table."""
    AdminClient(broker.web_url, timeout_s=None).call("POST", f"/persistent/{topic[13:]}/seal")


def check(sent: list[Any], rows: list[dict[str, Any]], raw: str) -> None:
    """Assert that each value is shown exactly, or that its payload is."""
    assert len(rows) == len(sent)
    for value, row in zip(sent, rows, strict=True):
        shown = row if raw == "__valueRaw" and isinstance(value, dict) else row["value"]
        if shown is None or not is_shown(value, shown):
            assert row[raw] is not None, f"{value} is shown as {row}, and its payload is lost"


def check_table(broker: Standalone, topic: str, sent: list[Any]) -> None:
    path = pulsark.table(topic, serviceUrl=broker.service_url, adminUrl=broker.web_url)
    table = DeltaTable(path).to_pyarrow_table()
    order = [("ledger_id", "ascending"), ("entry_id", "ascending")]
    check(sent, table.sort_by(order).to_pylist(), "value_raw")


@contextmanager
def started(path: Path) -> Iterator[Standalone]:
    with Standalone(path / "data", env=HURRIED) as broker:
        yield broker


def run(broker: Standalone, spark: SparkSession, kind: str, strategy: S, seeds: list[int]) -> None:
    namespace = f"public/{strategy.value.lower()}-{random.randrange(1 << 32)}"
    admin = AdminClient(broker.web_url)
    admin.call("PUT", f"/namespaces/{namespace}", {})
    admin.call("PUT", f"/namespaces/{namespace}/schemaCompatibilityStrategy", strategy.value)
    with connected(broker) as client:
        for seed in seeds:
            evolution = evolution_of(seed, kind, strategy)
            topic = f"persistent://{namespace}/evolves-{kind.lower()}-{seed}"
            sent = publish(broker, client, topic, evolution)
            auto = (
                spark.read.format("pulsark")
                .options(serviceUrl=broker.service_url, adminUrl=broker.web_url, valueFormat="auto")
                .load(topic)
                .orderBy("__ledgerId", "__entryId")
                .collect()
            )
            check(sent, [as_rows(row) for row in auto], "__valueRaw")
            check_table(broker, topic, sent)


@pytest.mark.spark
def test_schemas_that_evolve(tmp_path: Path, spark: SparkSession) -> None:
    with started(tmp_path) as broker:
        run(broker, spark, "AVRO", S.ALWAYS_COMPATIBLE, [3])
        run(broker, spark, "AVRO", S.BACKWARD, [1])
        for kind in KINDS[1:]:
            run(broker, spark, kind, S.ALWAYS_COMPATIBLE, [2])


@pytest.mark.spark
@pytest.mark.strangers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", [each for each in S if each is not S.UNDEFINED])
def test_schemas_evolve_under_each_strategy(
    tmp_path: Path, spark: SparkSession, kind: str, strategy: S
) -> None:
    with started(tmp_path) as broker:
        run(broker, spark, kind, strategy, list(range(10, 16)))
