"""Schemas with the official Python client: they evolve, and what does not fit is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import _pulsar
import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, Schema, String, StringSchema

from pulsark.admin_client.client import AdminClient
from tests.support.python_client import connect
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000
EARLIEST = pulsar.InitialPosition.Earliest


class Flight(Record):  # type: ignore[misc]
    carrier = String()


class FlightWithDelay(Record):  # type: ignore[misc]
    carrier = String()
    delay = Integer(default=7, required=True, required_default=True)


class FlightWithSeat(Record):  # type: ignore[misc]
    carrier = String()
    seat = String(required=True)


def named_flight(record: type[Record]) -> dict[str, Any]:
    """The definition of a version: all are called Flight, as one class of a program would be."""
    return record.schema() | {"name": "Flight"}


def avro(record: type[Record]) -> Schema:
    return AvroSchema(None, schema_definition=named_flight(record))


class JsonFlight(JsonSchema):  # type: ignore[misc]
    """A JSON schema of a version, likewise."""

    def __init__(self, record: type[Record]) -> None:
        super().__init__(record)
        Schema.__init__(self, record, _pulsar.SchemaType.JSON, named_flight(record), "JSON")


def versions(standalone: Standalone, topic: str) -> list[int]:
    path = f"/schemas/public/default/{topic.rpartition('/')[2]}/schemas"
    found = AdminClient(standalone.web_url).get(path)["getSchemaResponses"]
    return [each["version"] for each in found]


@pytest.mark.feature("F91")
@pytest.mark.command("GET_SCHEMA", "GET_SCHEMA_RESPONSE")
def test_avro_records_evolve(
    client: pulsar.Client, topic: str, shared_standalone: Standalone
) -> None:
    """The reader gets each message in its own schema; the client asks for the writers'."""
    old = client.create_producer(topic, schema=avro(Flight))
    old.send({"carrier": "UA"})
    new = client.create_producer(topic, schema=avro(FlightWithDelay))
    new.send({"carrier": "LH", "delay": -4})
    old.send({"carrier": "BA"})
    consumer = client.subscribe(
        topic, "new", initial_position=EARLIEST, schema=avro(FlightWithDelay)
    )
    messages = [consumer.receive(WAIT_MS) for _ in range(3)]
    assert [ord(message.schema_version()[7:]) for message in messages] == [0, 1, 0]
    assert [message.value() for message in messages] == [
        {"carrier": "UA", "delay": 7},
        {"carrier": "LH", "delay": -4},
        {"carrier": "BA", "delay": 7},
    ]
    previous = client.subscribe(topic, "old", initial_position=EARLIEST, schema=avro(Flight))
    assert previous.receive(WAIT_MS).value() == {"carrier": "UA"}
    assert previous.receive(WAIT_MS).value() == {"carrier": "LH"}
    assert versions(shared_standalone, topic) == [0, 1]


@pytest.mark.parametrize("schema", [avro, JsonFlight])
def test_what_does_not_fit_is_refused(client: pulsar.Client, topic: str, schema: Any) -> None:
    client.create_producer(topic, schema=schema(Flight))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema(FlightWithSeat))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema(FlightWithSeat))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    client.create_producer(topic, schema=schema(FlightWithDelay)).close()


def test_the_schema_of_the_first_consumer_binds_producers(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=avro(Flight))
    client.create_producer(topic, schema=StringSchema()).send("höflich")
    assert consumer.receive(WAIT_MS).value() == "höflich"


def test_an_operator_uploads_and_deletes(
    client: pulsar.Client, topic: str, admin: AdminClient
) -> None:
    path = f"/schemas/public/default/{topic.rpartition('/')[2]}/schema"
    assert admin.call("POST", path, {"type": "STRING", "schema": "", "properties": {}}) == {
        "version": {"version": 0}
    }
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=avro(Flight))
    assert admin.call("DELETE", path) == {"version": 1}
    producer = client.create_producer(topic, schema=avro(Flight))
    producer.send({"carrier": "UA"})
    assert admin.get(path)["version"] == 2
    assert admin.get(path)["type"] == "AVRO"


@pytest.mark.feature("F91")
def test_versions_survive_a_kill(tmp_path: Path) -> None:
    topic = "persistent://public/default/t"
    with Standalone(tmp_path / "data") as standalone:
        client = connect(standalone)
        producer = client.create_producer(topic, schema=avro(Flight))
        producer.send({"carrier": "UA"})
        client.create_producer(topic, schema=avro(FlightWithDelay))
        standalone.kill()
        client.close()
        standalone.start()
        client = connect(standalone)
        assert versions(standalone, topic) == [0, 1]
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=avro(FlightWithSeat))
        consumer = client.subscribe(
            topic, "s", initial_position=EARLIEST, schema=avro(FlightWithDelay)
        )
        assert consumer.receive(WAIT_MS).value() == {"carrier": "UA", "delay": 7}
        client.close()


def test_producers_that_come_at_once_agree_on_the_version(
    shared_standalone: Standalone, topic: str
) -> None:
    clients = [connect(shared_standalone) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        made = [
            pool.submit(client.create_producer, topic, schema=avro(record))
            for client in clients
            for record in (Flight, FlightWithDelay)
        ]
        for producer in made:
            producer.result().send({"carrier": "UA", "delay": 1})
    for client in clients:
        client.close()
    assert versions(shared_standalone, topic) == [0, 1]
