"""The schema keeps the rules that the frames build on."""

from __future__ import annotations

import pytest

from pulsark.errors import ServerError
from pulsark.wire import pulsar_pb2 as pb

TYPES = dict(pb.BaseCommand.Type.items())
FIELDS = {
    field.number: field
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}


def test_every_type_has_the_sub_message_of_its_number() -> None:
    assert set(TYPES.values()) == set(FIELDS)
    assert len(TYPES) == 71


@pytest.mark.parametrize(("name", "number"), sorted(TYPES.items()))
def test_sub_messages_are_named_after_the_type(name: str, number: int) -> None:
    message = FIELDS[number].message_type
    assert message is not None
    words = message.name.removeprefix("Command").lower()
    words = words.replace("partitionedtopicmetadata", "partitionedmetadata")
    assert words.replace("lookuptopic", "lookup") == name.replace("_", "").lower()


def test_error_codes_are_those_of_the_errors_module() -> None:
    assert dict(pb.ServerError.items()) == {code.name: code.value for code in ServerError}


@pytest.mark.parametrize(
    ("message", "field", "default"),
    [
        (pb.MessageIdData, "partition", -1),
        (pb.MessageIdData, "batch_index", -1),
        (pb.MessageMetadata, "num_messages_in_batch", 1),
        (pb.CommandSend, "num_messages", 1),
        (pb.CommandSubscribe, "durable", True),
        (pb.CommandSubscribe, "force_topic_creation", True),
        (pb.CommandProducer, "user_provided_producer_name", True),
        (pb.CommandProducerSuccess, "last_sequence_id", -1),
        (pb.CommandProducerSuccess, "producer_ready", True),
        (pb.CommandPartitionedTopicMetadata, "metadata_auto_creation_enabled", True),
        (pb.CommandGetTopicsOfNamespaceResponse, "changed", True),
    ],
)
def test_defaults_that_change_behaviour(message: type, field: str, default: object) -> None:
    assert getattr(message(), field) == default


def test_bytes_of_a_command_are_the_protocols() -> None:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    receipt = command.send_receipt
    receipt.producer_id, receipt.sequence_id = 1, 300
    receipt.message_id.ledgerId, receipt.message_id.entryId = 5, 6
    assert command.SerializeToString() == bytes.fromhex("0807 3a0b 0801 10ac02 1a04 0805 1006")


def test_unknown_fields_survive() -> None:
    extended = bytes.fromhex("0812 9201 00 ca3e 03 616263")  # PING and an unknown field 1001
    assert pb.BaseCommand.FromString(extended).SerializeToString() == extended
