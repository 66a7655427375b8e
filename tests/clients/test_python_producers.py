"""Producers of the official Python client against a real standalone: who may publish, and how."""

from __future__ import annotations

import os
import subprocess
import threading

import pulsar
import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.errors import ServerError
from tests.support.python_client import connect
from tests.support.standalone import Standalone
from tests.support.wire_client import Refused, WireClient

pytestmark = pytest.mark.client("python")

WAIT_MS = 10_000
Mode = pulsar.ProducerAccessMode


# -- access modes --------------------------------------------------------------------------------


def test_exclusive(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    producer.send(b"alone")
    producer.close()
    client.create_producer(topic).send(b"beside others")


def test_wait_for_exclusive(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Mode.Exclusive)
    created = threading.Event()
    found: list[pulsar.Producer] = []

    def create() -> None:
        found.append(client.create_producer(topic, access_mode=Mode.WaitForExclusive))
        created.set()

    waiting = threading.Thread(target=create, daemon=True)
    waiting.start()
    assert not created.wait(0.5)
    first.close()
    assert created.wait(10)
    found[0].send(b"next")
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Mode.Exclusive)


def test_exclusive_with_fencing(
    client: pulsar.Client, shared_standalone: Standalone, topic: str
) -> None:
    former = connect(shared_standalone)
    fenced = former.create_producer(topic, access_mode=Mode.Exclusive)
    fenced.send(b"first")
    producer = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        fenced.send(b"never stored")
    producer.send(b"second")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"first", b"second"]
    assert not reader.has_message_available()
    former.close()


@pytest.mark.parametrize("mode", [Mode.Exclusive, Mode.WaitForExclusive, Mode.ExclusiveWithFencing])
def test_a_fenced_producer_fails_at_once_with_all_it_sent(
    client: pulsar.Client, shared_standalone: Standalone, topic: str, mode: Mode
) -> None:
    former = connect(shared_standalone)
    fenced = former.create_producer(topic, access_mode=mode, batching_enabled=True)
    fenced.send(b"first")
    outcomes: list[pulsar.Result] = []
    done = threading.Event()
    sent = 800  # fewer than the queue of the client holds

    def answered(result: pulsar.Result, _: object) -> None:
        outcomes.append(result)
        if len(outcomes) == sent:
            done.set()

    for number in range(sent // 2):
        fenced.send_async(b"%d" % number, answered)
    producer = client.create_producer(topic, access_mode=Mode.ExclusiveWithFencing)
    for number in range(sent // 2):
        fenced.send_async(b"%d" % number, answered)
    assert done.wait(5)
    failed = {result for result in outcomes if result != pulsar.Result.Ok}
    assert pulsar.Result.ProducerFenced in failed
    assert failed <= {pulsar.Result.ProducerFenced, pulsar.Result.AlreadyClosed}
    assert outcomes[-1] in failed
    producer.send(b"second")
    former.close()


# -- names ---------------------------------------------------------------------------------------


def test_a_name_belongs_to_one_producer(client: pulsar.Client, topic: str) -> None:
    named = client.create_producer(topic, producer_name="me")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="me")
    generated = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(generated) == 5
    assert all(name.startswith("standalone-") for name in generated)
    named.close()
    assert client.create_producer(topic, producer_name="me").producer_name() == "me"


# -- deduplication -------------------------------------------------------------------------------


@pytest.mark.feature("F54", "F55")
@pytest.mark.parametrize("level", ["namespaces", "persistent"])
def test_deduplication_is_switched_by_policies(
    client: pulsar.Client, admin: AdminClient, namespace: str, level: str
) -> None:
    topic = f"persistent://{namespace}/t"
    producer = client.create_producer(topic, producer_name="me")
    if level == "namespaces":
        admin.call("POST", f"/namespaces/{namespace}/deduplication", True)
    else:
        admin.call("POST", f"/persistent/{namespace}/t/deduplicationEnabled", True)
    stats = admin.call("GET", f"/persistent/{namespace}/t/stats")
    assert stats["deduplicationStatus"] == "Enabled"
    assert not stats["subscriptions"]
    producer.send(b"first", sequence_id=10)
    producer.send(b"again", sequence_id=10)
    producer.send(b"old", sequence_id=3)
    producer.send(b"second", sequence_id=11)
    assert admin.call("GET", f"/persistent/{namespace}/t/subscriptions") == []
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"first", b"second"]
    assert not reader.has_message_available()


@pytest.mark.feature("F56")
def test_a_producer_goes_on_where_it_was(
    client: pulsar.Client, admin: AdminClient, namespace: str
) -> None:
    admin.call("POST", f"/namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/t"
    for first in (0, 100):
        producer = client.create_producer(
            topic,
            producer_name="me",
            batching_enabled=True,
            batching_max_messages=30,
            batching_max_publish_delay_ms=100,
        )
        assert producer.last_sequence_id() == first - 1
        for number in range(first + 100):  # from the beginning of its source
            if number > producer.last_sequence_id():
                producer.send_async(b"%d" % number, lambda *_: None, sequence_id=number)
        producer.flush()
        producer.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [int(reader.read_next(WAIT_MS).data()) for _ in range(200)] == list(range(200))
    assert not reader.has_message_available()


def test_batches_by_key_lose_nothing(
    client: pulsar.Client, admin: AdminClient, namespace: str
) -> None:
    """One flush is a batch for each key, and their sequence ids interleave."""
    admin.call("POST", f"/namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/t"
    receipts: list[pulsar.Result] = []
    for first in (0, 100):
        producer = client.create_producer(
            topic,
            producer_name="me",
            batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=1000,
        )
        assert producer.last_sequence_id() >= first - 5
        for number in range(first, first + 100):
            producer.send_async(
                b"%d" % number,
                lambda result, _: receipts.append(result),
                partition_key=f"key-{number % 3}",
            )
        producer.flush()
        producer.close()
    assert receipts == [pulsar.Result.Ok] * 200
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = sorted(int(reader.read_next(WAIT_MS).data()) for _ in range(200))
    assert found == list(range(200))
    assert not reader.has_message_available()


@pytest.mark.feature("F54")
def test_a_large_message_in_pieces_is_stored_once(
    client: pulsar.Client, admin: AdminClient, namespace: str
) -> None:
    admin.call("POST", f"/namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/t"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="me", chunking_enabled=True)
    payload = os.urandom(11 << 20)
    for _ in range(2):
        producer.send(payload, sequence_id=5)
    producer.send(b"next", sequence_id=6)
    assert consumer.receive(WAIT_MS).data() == payload
    assert consumer.receive(WAIT_MS).data() == b"next"
    assert admin.call("GET", f"/persistent/{namespace}/t/stats")["msgInCounter"] == 4


# -- encryption, compression, pieces -------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    """A key reader over a fresh pair of RSA keys."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    make = ["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]
    subprocess.run([*make, "-out", private], check=True, capture_output=True)
    show = ["openssl", "pkey", "-in", private, "-pubout", "-out", public]
    subprocess.run(show, check=True, capture_output=True)
    return pulsar.CryptoKeyReader(public, private)


ENCRYPTED = [
    {"batching_enabled": True, "batching_max_messages": 10},
    {"compression_type": pulsar.CompressionType.ZSTD},
    {"chunking_enabled": True, "compression_type": pulsar.CompressionType.LZ4},
]


@pytest.mark.parametrize("options", ENCRYPTED, ids=["batched", "compressed", "in pieces"])
def test_encrypted_messages_pass_through(
    client: pulsar.Client,
    shared_standalone: Standalone,
    topic: str,
    keys: pulsar.CryptoKeyReader,
    options: dict[str, object],
) -> None:
    large = "chunking_enabled" in options
    payloads = [os.urandom(7 << 20)] if large else [b"secret %d" % n for n in range(20)]
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys, **options)
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    assert [consumer.receive(WAIT_MS).data() for _ in payloads] == payloads
    with WireClient(shared_standalone.broker_port) as stranger:
        stranger.subscribe(topic, "stranger")
        received = stranger.message()
        assert received.metadata.encryption_keys[0].key == "k"
        assert payloads[0][:1000] not in received.entry


def test_where_encryption_is_required_nothing_else_is_taken(
    client: pulsar.Client,
    shared_standalone: Standalone,
    admin: AdminClient,
    namespace: str,
    keys: pulsar.CryptoKeyReader,
) -> None:
    admin.call("POST", f"/namespaces/{namespace}/encryptionRequired", True)
    topic = f"persistent://{namespace}/t"
    with WireClient(shared_standalone.broker_port) as plain, pytest.raises(Refused) as refused:
        plain.producer(topic)
    assert refused.value.code == ServerError.MetadataError
    producer = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
    producer.send(b"secret")
    consumer = client.subscribe(
        topic,
        "s",
        initial_position=pulsar.InitialPosition.Earliest,
        crypto_key_reader=keys,
    )
    assert consumer.receive(WAIT_MS).data() == b"secret"


def test_where_encryption_becomes_required_a_connected_producer_is_stopped(
    client: pulsar.Client, admin: AdminClient, namespace: str, keys: pulsar.CryptoKeyReader
) -> None:
    topic = f"persistent://{namespace}/later"
    plain = client.create_producer(topic, send_timeout_millis=1000)
    secret = client.create_producer(topic, encryption_key="k", crypto_key_reader=keys)
    plain.send(b"before")
    admin.call("POST", f"/namespaces/{namespace}/encryptionRequired", True)
    with pytest.raises(pulsar.PulsarException):
        plain.send(b"after")
    secret.send(b"secret")
    assert admin.call("GET", f"/persistent/{namespace}/later/stats")["msgInCounter"] == 2


@pytest.mark.feature("F7")
@pytest.mark.parametrize("compression", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compressed_messages_in_pieces(client: pulsar.Client, topic: str, compression: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        chunking_enabled=True,
        compression_type=getattr(pulsar.CompressionType, compression),
    )
    payload = os.urandom(6 << 20) + bytes(6 << 20)
    producer.send(payload)
    assert consumer.receive(WAIT_MS).data() == payload


def test_a_message_above_the_limit_is_refused_by_the_client(
    client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(6 << 20))
    producer.send(b"small")
