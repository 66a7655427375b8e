"""Schemas over the binary protocol: who may bring which, and what is handed out."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from pulsark.dispatch.policies.schemas import decode_version, encode_version
from pulsark.errors import ServerError
from pulsark.limits import SCHEMA_BYTES_MAX
from pulsark.metadata import resources
from pulsark.rates.shares import SharedBudget
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
SYSTEM_TOPIC = "persistent://public/default/__own"
SHARED = pb.CommandSubscribe.Shared
REFUSED = ServerError.IncompatibleSchema

_ids = count(1)


def avro(*fields: str, kind: int = pb.Schema.Avro, **more: Any) -> pb.Schema:
    """A record of ints; a field ``a=`` has a default."""
    listed: list[dict[str, Any]] = []
    for text in fields:
        name, has_default, _ = text.partition("=")
        listed.append({"name": name, "type": "int"} | ({"default": 0} if has_default else {}))
    definition = {"type": "record", "name": "R", "fields": listed, **more}
    return pb.Schema(name="s", type=kind, schema_data=json.dumps(definition).encode())


STRING = pb.Schema(name="s", type=pb.Schema.String, schema_data=b"")
AUTO_CONSUME = pb.Schema(name="s", type=pb.Schema.AutoConsume, schema_data=b"")


async def produce(client: Client, schema: pb.Schema | None, topic: str = TOPIC) -> Any:
    """Open a producer with a schema: its version, ``b""``, or the error."""
    number = next(_ids)
    command = client.producer_command(topic, f"p{number}", number)
    if schema is not None:
        command.producer.schema.CopyFrom(schema)
    client.send(command)
    answer = await client.take(Command.PRODUCER_SUCCESS, Command.ERROR)
    if answer.type == Command.ERROR:
        return answer.error
    return answer.producer_success.schema_version


async def consume(
    client: Client, schema: pb.Schema | None, topic: str = TOPIC, **options: Any
) -> int:
    """Subscribe with a schema: 0, or the code of the error."""
    number = next(_ids)
    command = client.subscribe_command(topic, f"s{number}", number, kind=SHARED, **options)
    if schema is not None:
        command.subscribe.schema.CopyFrom(schema)
    client.send(command)
    return await client.outcome()


async def get(client: Client, version: bytes | None = None) -> Any:
    command = Command(type=Command.GET_SCHEMA)
    request = command.getSchema
    request.topic, request.request_id = TOPIC, next(_ids)
    if version is not None:
        request.schema_version = version
    client.send(command)
    answer = (await client.take(Command.GET_SCHEMA_RESPONSE)).getSchemaResponse
    assert answer.request_id == request.request_id
    return answer


async def get_or_create(client: Client, schema: pb.Schema, topic: str = TOPIC) -> Any:
    command = Command(type=Command.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.topic, request.request_id = topic, next(_ids)
    request.schema.CopyFrom(schema)
    client.send(command)
    return (await client.take(Command.GET_OR_CREATE_SCHEMA_RESPONSE)).getOrCreateSchemaResponse


async def set_policies(broker: BrokerInMemory, topic: str = TOPIC, **policies: Any) -> None:
    """Set policies of the namespace and wait until the loaded topic has them."""
    await broker.broker.resources.namespaces.update(
        "public/default", lambda namespace: replace(namespace, policies=policies)
    )
    await asyncio.sleep(0.01)


def v(number: int) -> bytes:
    return number.to_bytes(8, "big")


# -- producers ---------------------------------------------------------------------------------


@pytest.mark.feature("F91")
@scenario()
async def test_versions_are_numbered_and_a_known_schema_keeps_its_own(broker) -> None:
    client = Client(broker)
    assert await produce(client, avro("a")) == v(0)
    assert await produce(client, avro("a", "b=")) == v(1)
    assert await produce(client, avro("a")) == v(0)
    assert await produce(client, avro("a", doc="now with a comment")) == v(0)
    assert await produce(client, None) == b""


@scenario()
async def test_an_incompatible_producer_is_refused_with_the_reason(broker) -> None:
    client = Client(broker)
    await produce(client, avro("a"))
    refused = await produce(client, avro("a", "b"))
    assert refused.error == REFUSED
    assert "record R, field b: the writer lacks it, and it has no default" in refused.message
    refused = await produce(client, STRING)
    assert refused.message == "Incompatible schema: exists schema type AVRO, new schema type STRING"
    assert (await get(client)).schema_version == v(0)
    assert client.connection.is_open


@scenario()
async def test_partitions_and_both_domains_share_the_schemas_of_their_name(broker) -> None:
    client = Client(broker)
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    assert await produce(client, avro("a"), f"{TOPIC}-partition-0") == v(0)
    assert await produce(client, avro("a", "b="), f"{TOPIC}-partition-1") == v(1)
    assert (await get(client)).schema_version == v(1)
    volatile = TopicName.parse("non-persistent://public/default/t")
    assert (await broker.broker.schemas.get(volatile)).version == 1


@scenario()
async def test_clients_that_register_one_schema_at_once_get_one_version(broker) -> None:
    clients = [Client(broker) for _ in range(20)]
    schemas = [avro("a"), avro("a", "b=")]
    versions = await asyncio.gather(
        *(produce(client, schemas[i % 2]) for i, client in enumerate(clients))
    )
    assert len(set(versions[::2])) == len(set(versions[1::2])) == 1
    assert set(versions) == {v(0), v(1)}
    assert len(await broker.metadata.children("/schemas/public/default/t")) == 2


@scenario()
async def test_what_is_set_for_the_namespace_holds_at_once(broker) -> None:
    client = Client(broker)
    await produce(client, avro("a"))
    await set_policies(broker, schema_compatibility_strategy="FORWARD")
    assert await produce(client, avro("a", "b")) == v(1)
    assert (await produce(client, avro("a"))) == v(0)
    await set_policies(broker, schema_compatibility_strategy="BACKWARD")
    assert (await produce(client, avro("a", "b", "c"))).error == REFUSED
    assert await produce(client, avro()) == v(2)
    await set_policies(broker, schema_compatibility_strategy="FULL_TRANSITIVE")
    assert (await produce(client, avro("c="))).error == REFUSED
    await set_policies(broker, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    assert await produce(client, STRING) == v(3)
    await set_policies(broker, schema_compatibility_strategy="ALWAYS_INCOMPATIBLE")
    assert (await produce(client, avro("z"))).error == REFUSED
    assert await produce(client, avro("a")) == v(0)


@scenario(schemaCompatibilityStrategy="ALWAYS_INCOMPATIBLE")
async def test_the_brokers_own_topics_have_a_strategy_of_their_own(broker, monkeypatch) -> None:
    assert await produce(Client(broker), avro("a"), SYSTEM_TOPIC) == v(0)
    assert (await produce(Client(broker), avro("b"), SYSTEM_TOPIC)).error == REFUSED
    monkeypatch.setattr(resources, "SYSTEM_TOPICS", frozenset({SYSTEM_TOPIC}))
    client = Client(broker)
    await set_policies(broker, is_allow_auto_update_schema=False)
    assert await produce(client, avro("b"), SYSTEM_TOPIC) == v(1)


@scenario()
async def test_without_automatic_updates_a_schema_must_be_there(broker) -> None:
    client = Client(broker)
    await set_policies(broker, is_allow_auto_update_schema=False)
    for attempt in (await produce(client, avro("a")), await get_or_create(client, avro("a"))):
        assert REFUSED in (getattr(attempt, "error", 0), getattr(attempt, "error_code", 0))
    assert await consume(client, avro("a")) == REFUSED
    await set_policies(broker)
    await produce(client, avro("a"))
    await set_policies(broker, is_allow_auto_update_schema=False)
    assert await produce(client, avro("a")) == v(0)
    refused = await produce(client, avro("a", "b="))
    assert refused.message == "Schema not found and schema auto updating is disabled."
    assert await consume(client, avro("a", "b=")) == 0


@scenario()
async def test_where_schemas_are_enforced_a_producer_without_one_is_refused(broker) -> None:
    client = Client(broker)
    await set_policies(broker, schema_validation_enforced=True)
    assert await produce(client, None) == b""
    await produce(client, avro("a"))
    refused = await produce(client, None)
    assert refused.error == REFUSED
    assert "without a schema" in refused.message
    assert await consume(client, None) == 0


# -- consumers ---------------------------------------------------------------------------------


@scenario()
async def test_the_first_consumer_of_an_unused_topic_brings_the_schema(broker) -> None:
    client = Client(broker)
    assert await consume(client, avro("a")) == 0
    assert (await get(client)).schema_version == v(0)
    assert (await produce(client, avro("b"))).error == REFUSED


@scenario()
async def test_a_consumer_must_read_the_newest_schema_and_adds_none(broker) -> None:
    client = Client(broker)
    await produce(client, avro("a", "b"))
    assert await consume(client, avro("a")) == 0
    assert await consume(client, avro("a", "c=")) == 0
    assert await consume(client, avro("a", "c")) == REFUSED
    assert await consume(client, STRING) == REFUSED
    assert (await get(client)).schema_version == v(0)
    await set_policies(broker, schema_compatibility_strategy="FORWARD")
    await produce(client, avro("a", "b", "c"))
    assert await consume(client, avro("a", "b")) == 0
    await set_policies(broker, schema_compatibility_strategy="BACKWARD_TRANSITIVE")
    assert await consume(client, avro("c")) == REFUSED
    await set_policies(broker, schema_compatibility_strategy="ALWAYS_INCOMPATIBLE")
    assert await consume(client, avro("a", "b")) == REFUSED
    assert await consume(client, avro("a", "b", "c")) == 0
    await set_policies(broker, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    assert await consume(client, STRING) == 0


@scenario()
async def test_a_consumer_that_takes_whatever_comes_registers_nothing(broker) -> None:
    client = Client(broker)
    assert await consume(client, AUTO_CONSUME) == 0
    assert (await get(client)).error_code == ServerError.TopicNotFound
    # It does not stand in the way of one that knows what it wants, either.
    assert await consume(client, avro("a")) == 0
    assert await consume(client, AUTO_CONSUME) == 0


@pytest.mark.parametrize("used_by", ["producer", "consumer", "messages"])
def test_bytes_stay_bytes_once_a_topic_is_in_use(used_by: str) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        client, first = Client(broker), Client(broker)
        if used_by == "consumer":
            await consume(first, None)
        else:
            await first.produce(TOPIC, 1 if used_by == "messages" else 0)
        if used_by == "messages":
            first.hang_up()
            await asyncio.sleep(0.01)
        assert await consume(client, avro("a")) == REFUSED
        await set_policies(broker, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
        assert await consume(client, avro("a")) == 0
        assert (await get(client)).error_code == ServerError.TopicNotFound

    run()


@scenario()
async def test_schemas_of_what_is_not_stored(broker) -> None:
    topic = "non-persistent://public/default/t"
    client = Client(broker)
    assert await consume(client, avro("a"), topic) == 0
    assert (await produce(client, avro("b"), topic)).error == REFUSED
    assert await produce(client, avro("a", "b="), topic) == v(1)
    assert await consume(client, STRING, topic) == REFUSED
    # What was published without a schema was bytes, though nothing of it is kept.
    other = "non-persistent://public/default/bytes"
    publisher = Client(broker)
    await publisher.produce(other, 1)
    publisher.send(publisher.close_command("producer"))
    await publisher.outcome()
    assert await consume(client, avro("a"), other) == REFUSED


# -- questions ---------------------------------------------------------------------------------


@pytest.mark.command("GET_SCHEMA", "GET_SCHEMA_RESPONSE")
@scenario()
async def test_a_schema_comes_back_as_it_was_given(broker) -> None:
    client = Client(broker)
    assert (await get(client)).error_code == ServerError.TopicNotFound
    given = avro("a", kind=pb.Schema.Json, doc="spelled in its own way")
    given.properties.add(key="owner", value="höfe")
    await produce(client, given)
    await produce(client, avro("a", "b=", kind=pb.Schema.Json))
    for version, expected in ((v(0), given), (v(1), None), (None, None)):
        answer = await get(client, version)
        assert answer.schema_version == (version or v(1))
        if expected is not None:
            assert answer.schema.schema_data == expected.schema_data
            assert answer.schema.type == pb.Schema.Json
            assert answer.schema.name == "t"
            assert list(answer.schema.properties) == list(expected.properties)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (b"", REFUSED),
        (b"\1", REFUSED),
        (bytes(9), REFUSED),
        (v(1), ServerError.TopicNotFound),
        (b"\xff" * 8, ServerError.TopicNotFound),
        (b"\x7f" * 8, ServerError.TopicNotFound),
    ],
)
def test_versions_that_there_are_not(version: bytes, code: ServerError) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        await produce(client, avro("a"))
        assert (await get(client, version)).error_code == code

    run()


@pytest.mark.command("GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE")
@scenario()
async def test_get_or_create_is_checked_as_a_producers_schema_is(broker) -> None:
    client = Client(broker)
    assert (await get_or_create(client, avro("a"))).error_code == ServerError.TopicNotFound
    await produce(client, avro("a"))
    assert (await get_or_create(client, avro("a"))).schema_version == v(0)
    assert (await get_or_create(client, avro("a", "b="))).schema_version == v(1)
    assert (await get_or_create(client, avro("b"))).error_code == REFUSED


@scenario()
async def test_the_schema_goes_with_its_topic(broker) -> None:
    client = Client(broker)
    await produce(client, avro("a"))
    await broker.broker.deletion.delete_topic(NAME, force=True)
    assert (await get(client)).error_code == ServerError.TopicNotFound
    assert await broker.metadata.children("/schemas/public/default") == []
    assert await produce(Client(broker), STRING) == v(0)


@scenario()
async def test_the_schema_of_a_partitioned_topic_goes_with_the_last_partition(broker) -> None:
    client = Client(broker)
    await broker.broker.creation.create_partitioned_topic(NAME, 2, {})
    await produce(client, avro("a"), f"{TOPIC}-partition-0")
    await broker.broker.deletion.delete_topic(NAME.with_partition(0), force=True)
    assert (await get(client)).schema_version == v(0)
    await broker.broker.deletion.delete_partitioned_topic(NAME, force=True)
    assert (await get(client)).error_code == ServerError.TopicNotFound


# -- hostile input -----------------------------------------------------------------------------


HOSTILE = {
    "no json": b"{",
    "no avro": b'{"type": "record"}',
    "no utf-8": b"\xff\xfe",
    "too large": b" " * (SCHEMA_BYTES_MAX + 1),
    "deep": b"[" * 100_000,
    "deep types": b'{"type":"array","items":' * 5000 + b'"int"' + b"}" * 5000,
    "a long name": b'{"type":"record","fields":[],"name":"' + b"x" * 400_000 + b'-"}',
    "half a character": b'{"type":"record","fields":[],"name":"\\ud800"}',
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", [pb.Schema.Avro, pb.Schema.Json, pb.Schema.ProtobufNative])
def test_a_definition_that_is_none_is_refused_and_the_connection_lives(
    data: bytes, kind: int
) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        client = Client(broker)
        schema = pb.Schema(name="s", type=kind, schema_data=data)  # type: ignore[arg-type]
        refused = await produce(client, schema)
        assert refused.error == REFUSED
        assert 0 < len(refused.message) <= 500
        assert await consume(client, schema) == REFUSED
        assert (await get_or_create(client, schema)).error_code == REFUSED
        assert (await get(client)).error_code == ServerError.TopicNotFound
        assert await produce(client, avro("a")) == v(0)

    run()


@scenario()
async def test_types_of_clients_are_no_schema_of_a_topic(broker) -> None:
    client = Client(broker)
    assert "for clients" in (await produce(client, AUTO_CONSUME)).message


@scenario()
async def test_a_client_that_leaves_during_a_comparison_leaves_nothing_behind(broker) -> None:
    def wide(prefix: str, last: str = "int") -> pb.Schema:
        fields = [{"name": f"{prefix}{i}", "type": "int", "default": 0} for i in range(2000)]
        definition = {"type": "record", "name": "R", "fields": fields}
        return pb.Schema(name="s", type=pb.Schema.Avro, schema_data=json.dumps(definition).encode())

    client = Client(broker)
    assert await produce(client, wide("a")) == v(0)
    leaving = Client(broker)
    command = leaving.producer_command(TOPIC, "leaves", 1)
    command.producer.schema.CopyFrom(wide("b"))
    leaving.send(command)
    leaving.hang_up()
    assert await produce(client, wide("c")) in (v(1), v(2))


@pytest.mark.parametrize("number", [0, 1, 2**40])
def test_versions_are_eight_bytes(number: int) -> None:
    assert decode_version(encode_version(number)) == number


@scenario()
async def test_large_requests_of_all_connections_have_bounded_room(broker: BrokerInMemory) -> None:
    broker.broker.request_room = room = SharedBudget(400_000)
    large = avro("a", doc="x" * 90_000)
    clients = [Client(broker) for _ in range(12)]
    requests = [asyncio.create_task(produce(client, large)) for client in clients]
    small = asyncio.create_task(produce(Client(broker), STRING, f"{TOPIC}2"))
    await asyncio.sleep(0)
    most = 0
    while not all(each.done() for each in requests):
        most = max(most, room.held)
        await asyncio.sleep(0.0001)
    answers = [each.result() for each in requests]
    refused = [each.error for each in answers if not isinstance(each, bytes)]
    assert set(refused) == {ServerError.ServiceNotReady}
    assert 0 < most <= 200_000, "the share of one client"
    assert len(refused) < 12
    assert answers.count(encode_version(0)) == 12 - len(refused)
    assert await small == encode_version(0)
    assert room.held == 0
    assert await produce(clients[-1], large) == encode_version(0)
