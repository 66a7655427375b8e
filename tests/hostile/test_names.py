"""Names on the binary port that are paths, no text, or like those of others."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from tests.hostile.conftest import ATTACKED, ATTACKER, Connect
from tests.support.secured import Secured, token
from tests.support.wire_client import Closed, Refused, WireClient

Command = pb.BaseCommand
MARK = "hostile-name"
"""In all names that are paths: nothing in the data directory may have it."""

NONE = {
    "empty": "",
    "a slash": "/",
    "only slashes": "persistent://///",
    "up": f"persistent://{ATTACKED}/../../{MARK}",
    "a namespace that is up": f"persistent://public/../{MARK}",
    "absolute": f"/{MARK}/etc/passwd",
    "a file": f"file:///{MARK}",
    "another domain": f"http://public/attacked/{MARK}",
    "the domain twice": f"persistent://persistent://{ATTACKED}/{MARK}",
    "NUL": f"persistent://{ATTACKED}/{MARK}\0.png",
    "a line end": f"persistent://{ATTACKED}/{MARK}\r\nX-Injected: 1",
    "10 kB": f"persistent://{ATTACKED}/{MARK}" + "x" * 10_000,
    "10 kB of three bytes each": f"persistent://{ATTACKED}/{MARK}" + "\u20ac" * 10_000,
    "an empty part": f"persistent://public//{MARK}",
    "the system's": "persistent://pulsar/system/audit",
    "somebody else's": f"persistent://public/default/{MARK}",
    "nobody's": f"persistent://nobody/nothing/{MARK}",
}
STRANGE = {
    "dots": f"{MARK}..",
    "only dots": "...",
    "a backslash": f"..\\..\\{MARK}",
    "encoded": f"%2e%2e%2f{MARK}",
    "encoded twice": f"%252e%252e%252f{MARK}",
    "overlong": f"%c0%ae%c0%ae{MARK}",
    "text from right to left": f"\u202e{MARK}",
    "no width": f"{MARK}\u200b",
    "an emoji": f"{MARK}\U0001f355",
    "not assigned": f"{MARK}\uffff",
    "SQL": f"'; DROP TABLE node; -- {MARK}",
    "a pattern": f"{MARK}*[",
    "a flag": f"--{MARK}",
    "a colon": f"{MARK}:1",
    "reserved in a file system": f"CON.{MARK}",
}
HIDDEN = (STRANGE["text from right to left"], STRANGE["no width"])
"""No subscription may be called so: the name would show as another one, or not as it is."""
NO_PARTITIONS = (
    "--1", "-2147483648", "-99999999999999999999", "-00", "-+1", "-\u0661", "-1e3", "- 1", "-",
    "-0-partition-0",
)  # fmt: skip
"""Behind ``-partition``: no numbers as clients write them, so these are topics of their own."""


def lookup(name: str) -> pb.BaseCommand:
    command = Command(type=Command.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = name, 1
    return command


def partitions(name: str) -> pb.BaseCommand:
    command = Command(type=Command.PARTITIONED_METADATA)
    command.partitionMetadata.topic, command.partitionMetadata.request_id = name, 1
    return command


def producer(name: str) -> pb.BaseCommand:
    command = Command(type=Command.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = name, 1, 1
    return command


def subscribe(name: str) -> pb.BaseCommand:
    command = Command(type=Command.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = name, name
    command.subscribe.consumer_id = command.subscribe.request_id = 1
    command.subscribe.subType = pb.CommandSubscribe.Exclusive
    return command


def schema(name: str) -> pb.BaseCommand:
    command = Command(type=Command.GET_SCHEMA)
    command.getSchema.topic, command.getSchema.request_id = name, 1
    return command


def topics_of(name: str) -> pb.BaseCommand:
    command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    command.getTopicsOfNamespace.namespace, command.getTopicsOfNamespace.request_id = name, 1
    return command


COMMANDS: dict[str, Callable[[str], pb.BaseCommand]] = {
    made.__name__: made for made in (lookup, partitions, producer, subscribe, schema, topics_of)
}
ANSWERS = [v for k, v in Command.Type.items() if k not in ("PING", "PONG", "CONNECTED")]


def answer(broker: Secured, command: pb.BaseCommand) -> pb.BaseCommand | None:
    """``None`` if the broker hangs up."""
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        client.send_bytes(encode_command(command))
        try:
            return client.take(*ANSWERS)
        except Closed:
            return None


def is_refused(found: pb.BaseCommand | None) -> bool:
    if found is None or found.type == Command.ERROR:
        return True
    if found.type == Command.LOOKUP_RESPONSE:
        return found.lookupTopicResponse.response == pb.CommandLookupTopicResponse.Failed
    if found.type == Command.PARTITIONED_METADATA_RESPONSE:
        refused = pb.CommandPartitionedTopicMetadataResponse.Failed
        return found.partitionMetadataResponse.response == refused
    if found.type == Command.GET_SCHEMA_RESPONSE:
        return found.getSchemaResponse.HasField("error_code")
    return False


def data_files(broker: Secured) -> list[str]:
    folder = Path(broker.data_dir)
    return [os.path.join(*found) for found in _walk(folder)]


def _walk(folder: Path) -> list[tuple[str, str]]:
    return [(at, name) for at, dirs, files in os.walk(folder) for name in [*dirs, *files]]


@pytest.mark.parametrize("name", NONE.values(), ids=NONE.keys())
def test_names_that_are_none_or_of_others(broker: Secured, name: str) -> None:
    for made in COMMANDS.values():
        assert is_refused(answer(broker, made(name))), made.__name__
    assert not [path for path in data_files(broker) if MARK in path]


@pytest.mark.parametrize("local", STRANGE.values(), ids=STRANGE.keys())
def test_strange_names_are_only_names(broker: Secured, local: str) -> None:
    """Such a topic is there under just this name, or nowhere."""
    name = f"persistent://{ATTACKED}/{local}"
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        try:
            client.producer(name)
        except Refused:
            return
        client.publish(b"x")
        subscription = local
        if local in HIDDEN:
            with pytest.raises(Refused) as refused:
                client.subscribe(name, local)
            assert refused.value.code == pb.NotAllowedError
            subscription = "s"
        client.subscribe(name, subscription)
        assert client.message().payload == b"x"
        assert (
            name
            in client.request(
                topics_of(ATTACKED), Command.GET_TOPICS_OF_NAMESPACE_RESPONSE
            ).getTopicsOfNamespaceResponse.topics
        )
    assert not [path for path in data_files(broker) if MARK in path]


def test_a_partition_that_is_not_there(broker: Secured, target: str) -> None:
    broker.admin().call("PUT", f"/{target.replace('://', '/', 1)}/partitions", 2)
    for number in ("2", "999999"):
        for made in (producer, subscribe):
            assert is_refused(answer(broker, made(f"{target}-partition-{number}"))), number
    names = broker.admin().get(f"/persistent/{ATTACKED}")
    assert sorted(name for name in names if name.startswith(f"{target}-")) == [
        f"{target}-partition-0",
        f"{target}-partition-1",
    ]


@pytest.mark.parametrize("end", NO_PARTITIONS)
def test_a_partition_that_is_no_number_is_a_topic_or_nothing(
    broker: Secured, target: str, end: str
) -> None:
    broker.admin().call("PUT", f"/{target.replace('://', '/', 1)}/partitions", 2)
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        try:
            client.producer(f"{target}-partition{end}")
        except Refused:
            return
        client.publish(b"x")
        for number in range(2):
            client.subscribe(f"{target}-partition-{number}", "s", consumer_id=number)
        with pytest.raises(TimeoutError):
            client.message(0.1)


def test_names_that_look_alike_are_different_topics(connect: Connect, target: str) -> None:
    alike = ["\u00e9", "e\u0301", "\u0435\u0301", "\uff45\u0301"]
    assert len({unicodedata.normalize("NFC", each) for each in alike}) > 1
    names = [*(f"{target}-{each}" for each in alike), f"{target}-a", f"{target}-A"]
    client = connect(ATTACKER)
    for number, name in enumerate(names):
        client.producer(name, producer_id=number)
        client.publish(str(number).encode(), producer_id=number)
    for number, name in enumerate(names):
        client.subscribe(name, "s", consumer_id=number)
        assert client.message().payload == str(number).encode()
        assert client.waiting_message() is None


def test_a_name_that_is_not_utf8(broker: Secured) -> None:
    for made in COMMANDS.values():
        frame = encode_command(made(f"persistent://{ATTACKED}/{MARK}-????"))
        with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
            client.send_bytes(frame.replace(b"????", b"\xff\xfe\xc0\xaf"))
            try:
                found = client.take(*ANSWERS)
            except Closed:
                continue
            assert is_refused(found), made.__name__
    assert not [path for path in data_files(broker) if MARK in path]
