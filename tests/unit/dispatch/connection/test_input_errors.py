"""What is wrong with a command is said to its client; the log is not for that."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pulsark.dispatch.loop.defects import AGAIN_SECONDS, Defects
from pulsark.errors import ServerError
from pulsark.limits import CLIENT_METADATA_CHARS_MAX, SUBSCRIPTION_PROPERTIES_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb
from tests.support.broker_clients import TOPIC, Client, Command, scenario
from tests.support.wire_frames import publish

EXTERNAL_SCHEMA = 22


# -- what clients attach -------------------------------------------------------------------------


@scenario()
async def test_metadata_of_a_producer_is_bounded(broker) -> None:
    client = Client(broker)
    for size, told in ((CLIENT_METADATA_CHARS_MAX, Command.ERROR), (1, Command.PRODUCER_SUCCESS)):
        command = client.producer_command(TOPIC, "p")
        command.producer.metadata.add(key="k", value="v" * size)
        client.send(command)
        answer = await client.take(Command.PRODUCER_SUCCESS, Command.ERROR)
        assert answer.type == told
        if told == Command.ERROR:
            assert answer.error.error == ServerError.MetadataError
            assert answer.error.message == "Producer metadata is longer than 1024 characters"


@scenario()
async def test_properties_of_a_subscription_are_bounded_in_bytes(broker) -> None:
    client = Client(broker)
    # Two bytes a character.
    for size, code in ((SUBSCRIPTION_PROPERTIES_BYTES_MAX // 2, 1), (1000, 0)):
        command = client.subscribe_command(TOPIC)
        command.subscribe.subscription_properties.add(key="k", value="\u00fc" * size)
        client.send(command)
        assert await client.outcome() == code
    (topic,) = broker.broker.topics.loaded()
    assert list(topic.subscriptions["s"].properties.given) == ["k"]


# -- markers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [0, 10, 21, 22, 23, 1001, -1])
@pytest.mark.parametrize("topic", [TOPIC, "non-persistent://public/default/t"])
def test_clients_do_not_publish_markers(kind: int, topic: str) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        await client.open_producer(topic, "p")
        client.send_bytes(publish(1, 5, b"x", marker_type=kind))
        error = (await client.take(Command.SEND_ERROR)).send_error
        assert (error.producer_id, error.sequence_id) == (1, 5)
        assert error.error == ServerError.NotAllowedError
        client.send_bytes(publish(1, 6, b"x"))
        assert (await client.take(Command.SEND_RECEIPT)).send_receipt.sequence_id == 6

    run()


@scenario()
async def test_brokers_of_other_clusters_do(broker) -> None:
    client = Client(broker)
    await client.open_producer(TOPIC, "pulsar.repl.west-->east")
    client.send_bytes(publish(1, 5, b"x", marker_type=10))
    await client.take(Command.SEND_RECEIPT)


# -- what is not an answer -------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["PRODUCER", "SUBSCRIBE", "GET_OR_CREATE_SCHEMA"])
def test_a_schema_of_an_unknown_type_is_refused(ask: str, caplog: Any) -> None:
    @scenario()
    async def run(broker) -> None:
        client = Client(broker)
        await client.produce(TOPIC, 0)
        wanted = pb.Schema(name="s", schema_data=b"{}", type=EXTERNAL_SCHEMA)  # type: ignore[arg-type]
        if ask == "PRODUCER":
            command = client.producer_command(TOPIC, "q", 2)
            command.producer.schema.CopyFrom(wanted)
        elif ask == "SUBSCRIBE":
            command = client.subscribe_command(TOPIC)
            command.subscribe.schema.CopyFrom(wanted)
        else:
            command = Command(type=Command.GET_OR_CREATE_SCHEMA)
            request = command.getOrCreateSchema
            request.request_id, request.topic = 1, TOPIC
            request.schema.CopyFrom(wanted)
        client.send(command)
        answer = await client.take(Command.ERROR, Command.GET_OR_CREATE_SCHEMA_RESPONSE)
        if answer.type == Command.ERROR:
            code, message = answer.error.error, answer.error.message
        else:
            response = answer.getOrCreateSchemaResponse
            code, message = response.error_code, response.error_message
        assert code == ServerError.IncompatibleSchema
        assert message == f"Schema type {EXTERNAL_SCHEMA} is unknown"

    with caplog.at_level(logging.WARNING):
        run()
    assert not caplog.records


@scenario()
async def test_a_defect_tells_the_client_nothing_of_the_program(broker) -> None:
    client = Client(broker)

    async def broken(*_: object) -> None:
        raise KeyError("secret")

    broker.broker.creation.topic_for_clients = broken
    client.send(client.producer_command(TOPIC, "p"))
    error = (await client.take(Command.ERROR)).error
    assert error.error == ServerError.UnknownError
    assert error.message == "Internal error; the log of the broker says more"
    assert client.connection.is_open


@scenario()
async def test_messages_that_a_client_calls_corrupt_fill_no_log(
    broker, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(broker)
    await client.subscribe(TOPIC)
    command = Command(type=Command.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
    command.ack.validation_error = pb.CommandAck.ChecksumMismatch
    for entry_id in range(10_000):
        command.ack.message_id.add(ledgerId=5, entryId=entry_id)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            client.send(command)
    (said,) = caplog.messages
    assert "10000 corrupt messages, such as ['5:0', '5:1'" in said
    assert len(said) < 300


class Stopped:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return 0


def test_a_place_in_the_program_is_told_with_its_trace_once(caplog: Any) -> None:
    clock = Stopped()
    defects = Defects(clock)

    def fail(number: int) -> None:
        try:
            if number % 2:
                raise KeyError(number)
            raise ValueError(number)
        except Exception as error:
            defects.report(error, "A request failed")

    for number in range(10):
        fail(number)
    traced = [record.exc_info is not None for record in caplog.records]
    assert traced == [True, True]
    clock.now += AGAIN_SECONDS
    fail(1)
    fail(3)
    assert len(caplog.records) == 3
    assert caplog.records[-1].exc_info is None
    assert "KeyError" in caplog.text
    assert "again, 5 times" in caplog.records[-1].getMessage()
