"""Payloads that become very large, or say so, where the broker looks into them itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import pytest

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import encode_batch
from pulsark.wire.compression import compress
from pulsark.wire.entry import build_entry
from pulsark.wire.frames import send_frame
from tests.hostile.conftest import ATTACKER
from tests.support.secured import Secured, token
from tests.support.wire_client import WireClient
from tests.support.wire_frames import send_command

MIB = 1 << 20
CODECS = {"LZ4": 200 * MIB, "ZLIB": 200 * MIB, "ZSTD": 200 * MIB, "SNAPPY": 64 * MIB}
"""How large the payloads become; as they come, they are smaller than a message may be."""
TINY = 300_000
RUN_SECONDS = 60.0
SEAL_SECONDS = 240.0
"""For some seconds of a processor, where other tests leave none."""


@cache
def bomb(codec: str) -> bytes:
    """A batch of one message, whose payload is zeros."""
    single = pb.SingleMessageMetadata(partition_key="k")
    return entry(codec, encode_batch([(single, bytes(CODECS[codec]))]), 1)


@cache
def tiny_messages(codec: str) -> bytes:
    """A batch of very many messages with nothing in them but a key."""
    single = pb.SingleMessageMetadata(partition_key="k")
    return entry(codec, encode_batch([(single, b"")]) * TINY, TINY)


def entry(codec: str, payload: bytes, messages: int, claimed: int | None = None) -> bytes:
    kind = pb.CompressionType.Value(codec)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.compression, metadata.num_messages_in_batch = kind, messages
    metadata.uncompressed_size = len(payload) if claimed is None else claimed
    return build_entry(metadata, compress(kind, payload))


def store(client: WireClient, topic: str, data: bytes, messages: int = 1) -> None:
    client.producer(topic)
    client.send_bytes(send_frame(send_command(1, 0, messages), data))
    client.receipt()


def looked_into(broker: Secured, topic: str) -> None:
    """Have the broker look into the last entry of a topic in all ways that it has."""
    admin, path = broker.admin(), "/" + topic.replace("://", "/", 1)
    for look in ("examinemessage", "subscription/none/position/1"):
        answer = admin.request("GET", f"{path}/{look}")
        assert answer.status == 200 or answer.reason, answer
    admin.call("PUT", f"{path}/compaction")
    deadline = time.monotonic() + RUN_SECONDS
    while admin.get(f"{path}/compaction")["status"] == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert admin.get(f"{path}/compaction")["status"] == "SUCCESS"
    with WireClient(broker.broker_port, token=token(ATTACKER)) as reader:
        reader.subscribe(topic, "reader", read_compacted=True, durable=False)
        last = pb.BaseCommand(type=pb.BaseCommand.GET_LAST_MESSAGE_ID)
        last.getLastMessageId.consumer_id = last.getLastMessageId.request_id = 1
        reader.request(last, pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)


def sealed(broker: Secured, topic: str) -> None:
    """Have it become rows, in the process for that, which goes behind all others."""
    admin, path = broker.admin(timeout_s=SEAL_SECONDS), "/" + topic.replace("://", "/", 1)
    admin.call("PUT", f"{path}/subscription/kept")  # a topic without any is deleted after a minute
    admin.call("POST", f"{path}/seal")
    table = admin.get(f"{path}/table")
    assert table["rows"] == 1, table


@cache
def wide_window(exponent: int) -> bytes:
    """A frame of Zstandard that says its content may refer back very far, and is small."""
    payload = encode_batch([(pb.SingleMessageMetadata(partition_key="k"), b"x" * 100)])
    block = (len(payload) << 3 | 1).to_bytes(3, "little")
    frame = bytes.fromhex("28b52ffd00") + bytes([exponent - 10 << 3]) + block + payload
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.compression, metadata.num_messages_in_batch = pb.ZSTD, 1
    metadata.uncompressed_size = len(payload)
    return build_entry(metadata, frame)


BATCHES: dict[str, Callable[[str], bytes]] = {"one message": bomb, "tiny messages": tiny_messages}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_becomes_very_large(
    broker: Secured, target: str, codec: str, batch: str
) -> None:
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        store(client, target, BATCHES[batch](codec), 1 if batch == "one message" else TINY)
    looked_into(broker, target)


@pytest.mark.parametrize("claimed", [0, 1, 200 * MIB, 2**31, 2**32 - 1])
@pytest.mark.parametrize("codec", CODECS)
def test_a_size_that_is_a_lie(broker: Secured, target: str, codec: str, claimed: int) -> None:
    single = pb.SingleMessageMetadata(partition_key="k")
    payload = encode_batch([(single, b"x" * 100)])
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        store(client, target, entry(codec, payload, 1, claimed))
    looked_into(broker, target)


@pytest.mark.parametrize("exponent", [27, 31, 41])
def test_a_window_of_zstandard(broker: Secured, target: str, exponent: int) -> None:
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        store(client, target, wide_window(exponent))
    looked_into(broker, target)
    sealed(broker, target)


@pytest.mark.parametrize("codec", ["ZSTD", "SNAPPY"])  # the largest, and one that is not that large
def test_a_batch_that_becomes_very_large_when_it_is_sealed(
    broker: Secured, target: str, codec: str
) -> None:
    with WireClient(broker.broker_port, token=token(ATTACKER)) as client:
        store(client, target, bomb(codec))
    sealed(broker, target)
