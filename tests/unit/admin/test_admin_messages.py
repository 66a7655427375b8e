"""Stored messages over HTTP."""

from __future__ import annotations

import base64
import json

import pytest

from pulsark.limits import SHOWN_PAYLOAD_BYTES_MAX
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, decode_batch
from pulsark.wire.compression import compress
from pulsark.wire.entry import build_entry
from pulsark.wire.position import Position
from tests.support.admin_api import NAMESPACE, AdminApi, Answer, subscription_path
from tests.support.wire_frames import entry_of

TOPIC = f"{NAMESPACE}/t"
SUBSCRIPTION = subscription_path("t", "s")
EARLIEST = {"ledgerId": -1, "entryId": -1}


@pytest.fixture
def subscribed(api: AdminApi) -> AdminApi:
    assert api.put(SUBSCRIPTION, EARLIEST).status == 204
    return api


def batch(*bodies: bytes, compression: pb.CompressionType = pb.NONE) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1)
    return build_batch(metadata, [(pb.SingleMessageMetadata(), b) for b in bodies], compression)


def header(answer: Answer, name: str) -> str | None:
    return answer.headers.get(f"x-pulsar-{name}".lower())


# -- what a message looks like ----------------------------------------------------------------


def test_all_that_a_message_has(subscribed: AdminApi) -> None:
    subscribed.store(
        "t",
        entry_of(
            b"payload",
            5,
            publish_time=1_700_000_000_123,
            event_time=1_600_000_000_000,
            deliver_at_time=1_800_000_000_000,
            properties=[pb.KeyValue(key="k", value="v\n\u00e4")],
            partition_key="key\r\nX-Evil: \u4f60",
            ordering_key=b"\0o",
            schema_version=b"\0\1",
            replicated_from="c1",
            replicate_to=["c2", "c3"],
            null_partition_key=False,
        ),
    )
    answer = subscribed.get(f"{SUBSCRIPTION}/position/1")
    assert (answer.status, answer.body) == (200, b"payload")
    ledger = subscribed.topic("t").ledger.last_confirmed.ledger_id
    assert {name: header(answer, name) for name in (
        "Message-ID", "publish-time", "event-time", "deliver-at-time", "producer-name",
        "sequence-id", "partition-key", "null-partition-key", "replicated-from", "replicated-to",
        "Is-Encrypted", "txn-uncommitted", "num-batch-message", "compression",
    )} == {
        "Message-ID": f"{ledger}:0",
        "publish-time": "2023-11-14T22:13:20.123Z",
        "event-time": "2020-09-13T12:26:40.000Z",
        "deliver-at-time": "2027-01-15T08:00:00.000Z",
        "producer-name": "test",
        "sequence-id": "5",
        "partition-key": "key??X-Evil: ?",
        "null-partition-key": "false",
        "replicated-from": "c1",
        "replicated-to": "c2,c3",
        "Is-Encrypted": "false",
        "txn-uncommitted": "false",
        "num-batch-message": None,
        "compression": None,
    }  # fmt: skip
    assert json.loads(header(answer, "PROPERTY") or "") == {"k": "v\n\u00e4"}
    assert base64.b64decode(header(answer, "Base64-ordering-key") or "") == b"\0o"
    assert base64.b64decode(header(answer, "Base64-schema-version-b64encoded") or "") == b"\0\1"
    assert header(answer, "evil") is None


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_a_batch_comes_decompressed_and_whole(subscribed: AdminApi, compression: str) -> None:
    subscribed.store(
        "t", batch(b"a", b"b" * 1000, compression=pb.CompressionType.Value(compression))
    )
    answer = subscribed.get(f"{SUBSCRIPTION}/position/1")
    assert [payload for _, payload in decode_batch(answer.body, 2)] == [b"a", b"b" * 1000]
    assert header(answer, "num-batch-message") == "2"
    assert header(answer, "PROPERTY") == "{}"
    if compression != "NONE":
        assert header(answer, "compression") == compression
        assert header(answer, "uncompressed-size") == str(len(answer.body))


def test_what_cannot_be_decompressed_comes_as_it_is(subscribed: AdminApi) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.compression, metadata.uncompressed_size = pb.LZ4, 9
    metadata.encryption_keys.add(key="k", value=b"v")
    subscribed.store("t", build_entry(metadata, b"secret"))
    answer = subscribed.get(f"{SUBSCRIPTION}/position/1")
    assert (answer.body, header(answer, "Is-Encrypted")) == (b"secret", "true")
    piece = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    piece.compression, piece.uncompressed_size, piece.num_chunks_from_msg = pb.LZ4, 9, 2
    subscribed.store("t", build_entry(piece, b"piece"))
    answer = subscribed.get(f"{SUBSCRIPTION}/position/2")
    assert (answer.body, header(answer, "num-chunks-from-msg")) == (b"piece", "2")


def test_a_payload_that_would_be_too_large_comes_as_it_is_stored(subscribed: AdminApi) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.compression = pb.ZLIB
    metadata.uncompressed_size = SHOWN_PAYLOAD_BYTES_MAX + 1
    bomb = compress(pb.ZLIB, bytes(metadata.uncompressed_size))
    subscribed.store("t", build_entry(metadata, bomb))
    answer = subscribed.get(f"{SUBSCRIPTION}/position/1")
    assert (answer.status, answer.body) == (200, bomb)


@pytest.mark.parametrize("compression", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_a_damaged_payload_comes_as_it_is_stored(subscribed: AdminApi, compression: str) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.compression = pb.CompressionType.Value(compression)
    metadata.uncompressed_size = 128
    for place, payload in enumerate((b"", b"no compressed payload"), 1):
        subscribed.store("t", build_entry(metadata, payload))
        answer = subscribed.get(f"{SUBSCRIPTION}/position/{place}")
        assert (answer.status, answer.body) == (200, payload)
        assert header(answer, "compression") == compression


def test_times_that_are_none_are_left_out(subscribed: AdminApi) -> None:
    subscribed.store("t", entry_of(b"x", publish_time=2**63))
    answer = subscribed.get(f"{SUBSCRIPTION}/position/1")
    assert (answer.status, header(answer, "publish-time")) == (200, None)


# -- which message ----------------------------------------------------------------------------


def test_peek_counts_what_is_not_acknowledged(subscribed: AdminApi) -> None:
    subscribed.publish("t", b"a", b"b", b"c", b"d")
    consumer = subscribed.connect_consumer("t", "s", pb.CommandSubscribe.Shared)
    ledger = subscribed.topic("t").ledger.last_confirmed.ledger_id
    subscribed.ack(consumer, (Position(ledger, 1), None, None))
    found = [subscribed.get(f"{SUBSCRIPTION}/position/{place}") for place in (1, 2, 3, 4)]
    assert [answer.body for answer in found[:3]] == [b"a", b"c", b"d"]
    assert [answer.status for answer in found] == [200, 200, 200, 404]
    for place in ("0", "-1", "x"):
        assert subscribed.get(f"{SUBSCRIPTION}/position/{place}").status == 404
    # A subscription that does not exist has acknowledged nothing.
    unknown = f"{subscription_path('t', 'none')}/position"
    assert subscribed.get(f"{unknown}/1").headers["x-pulsar-message-id"] == "1:0"
    assert subscribed.get(f"{unknown}/99").status == 404
    assert list(subscribed.topic("t").subscriptions) == ["s"]


def test_a_message_by_its_id(subscribed: AdminApi) -> None:
    subscribed.publish("t", b"a", b"b")
    subscribed.publish("other", b"theirs")
    ledger, other = (
        subscribed.topic(name).ledger.last_confirmed.ledger_id for name in ("t", "other")
    )
    assert subscribed.get(f"{TOPIC}/ledger/{ledger}/entry/1").body == b"b"
    for path in (f"{ledger}/entry/2", f"{other}/entry/0", "99/entry/0", f"{ledger}/entry/-1"):
        assert subscribed.get(f"{TOPIC}/ledger/{path}").status == 404, path
    assert subscribed.get(f"{NAMESPACE}/none/ledger/0/entry/0").status == 404


def test_a_message_from_either_end(subscribed: AdminApi) -> None:
    path = f"{TOPIC}/examinemessage"
    assert subscribed.get(path).status == 412
    subscribed.publish("t", b"a", b"b", b"c")
    for query, wanted in (
        ("", b"c"),
        ("?messagePosition=2", b"b"),
        ("?initialPosition=latest&messagePosition=3", b"a"),
        ("?initialPosition=earliest", b"a"),
        ("?initialPosition=earliest&messagePosition=3", b"c"),
        ("?initialPosition=earliest&messagePosition=0", b"a"),
    ):
        assert subscribed.get(path + query).body == wanted, query
    assert subscribed.get(f"{path}?messagePosition=4").status == 404
    assert subscribed.get(f"{path}?initialPosition=middle").status == 412


def test_a_partitioned_topic_has_no_messages_of_its_own(api: AdminApi) -> None:
    api.put(f"{NAMESPACE}/p/partitions", 1)
    path = subscription_path("p", "s")
    api.put(path)
    assert api.get(f"{path}/position/1").status == 405
    assert api.post(f"{path}/analyzeBacklog").status == 405
    for rest in ("ledger/0/entry/0", "examinemessage"):
        assert api.get(f"{NAMESPACE}/p/{rest}").status == 405
    assert api.put(f"{NAMESPACE}/p/backlogSize", EARLIEST).status == 405


# -- how much ---------------------------------------------------------------------------------


def test_bytes_behind_a_message(subscribed: AdminApi) -> None:
    subscribed.publish("t", *[bytes(100)] * 4)
    ledger = subscribed.topic("t").ledger.last_confirmed.ledger_id
    total = subscribed.put(f"{TOPIC}/backlogSize", EARLIEST).json
    assert total == subscribed.topic("t").ledger.total_size > 400
    half = subscribed.put(f"{TOPIC}/backlogSize", {"ledgerId": ledger, "entryId": 2}).json
    assert half == total // 2
    assert subscribed.put(f"{TOPIC}/backlogSize").status == 400


def test_analyze_a_backlog() -> None:
    api = AdminApi(acknowledgmentAtBatchIndexLevelEnabled=True)
    api.put(SUBSCRIPTION, EARLIEST)
    api.store("t", batch(b"a", b"b", b"c"), entry_of(b"d"), entry_of(b"e"))
    ledger = api.topic("t").ledger.last_confirmed.ledger_id
    consumer = api.connect_consumer("t", "s", pb.CommandSubscribe.Shared)
    api.ack(consumer, (Position(ledger, 0), [0b101], 3), (Position(ledger, 1), None, None))
    found = api.post(f"{SUBSCRIPTION}/analyzeBacklog").json
    assert (found["entries"], found["messages"], found["aborted"]) == (2, 3, False)
    assert (found["filterAcceptedEntries"], found["filterAcceptedMessages"]) == (2, 3)
    assert (found["firstMessageId"], found["lastMessageId"]) == (f"{ledger}:0", f"{ledger}:2")
    later = api.post(f"{SUBSCRIPTION}/analyzeBacklog", {"ledgerId": ledger, "entryId": 1}).json
    assert (later["entries"], later["messages"]) == (1, 1)
    api.close()


def test_the_analysis_of_a_long_backlog_ends(
    subscribed: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsark.admin.pulsar.messages.ANALYZED_ENTRIES_MAX", 2)
    assert not subscribed.post(f"{SUBSCRIPTION}/analyzeBacklog").json["aborted"]
    subscribed.publish("t", b"a", b"b")
    assert not subscribed.post(f"{SUBSCRIPTION}/analyzeBacklog").json["aborted"]
    subscribed.publish("t", b"c")
    found = subscribed.post(f"{SUBSCRIPTION}/analyzeBacklog").json
    assert (found["entries"], found["aborted"]) == (2, True)
