"""Key_Shared with the official Python client: keys stick and keep their order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import count

import pulsar
import pytest

from pulsark.wire.hashes import murmur3_32
from tests.support.python_client import connect
from tests.support.standalone import Standalone

pytestmark = pytest.mark.client("python")

KEY_SHARED = pulsar.ConsumerType.KeyShared
WAIT_SECONDS = 60


@pytest.fixture
def new_client(shared_standalone: Standalone) -> Iterator[Callable[[], pulsar.Client]]:
    clients = []

    def new() -> pulsar.Client:
        clients.append(connect(shared_standalone))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


class Record:
    """What consumers processed, in the order in which they did."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._seen: set[tuple[str, int]] = set()
        self.complete = threading.Event()
        self.by_key: dict[str, list[int]] = defaultdict(list)
        self.owners: dict[str, set[str]] = defaultdict(set)

    def add(self, consumer: str, message: pulsar.Message) -> None:
        key, number = message.ordering_key() or message.partition_key(), int(message.data())
        with self._lock:
            self.owners[key].add(consumer)
            if (key, number) not in self._seen:  # else its acknowledgement was lost on the way
                self._seen.add((key, number))
                self.by_key[key].append(number)
            if len(self._seen) == self._wanted:
                self.complete.set()


class Worker:
    """A consumer that processes and acknowledges in a thread of its own until it is closed."""

    def __init__(self, client: pulsar.Client, topic: str, name: str, record: Record, **options):
        self._consumer = client.subscribe(
            topic, "s", KEY_SHARED, consumer_name=name, receiver_queue_size=20, **options
        )
        self._name = name
        self._record = record
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._leave.is_set():
            try:
                message = self._consumer.receive(50)
            except pulsar.Timeout:
                continue
            self._record.add(self._name, message)
            self._consumer.acknowledge(message)

    def close(self) -> None:
        """Leave, with unprocessed messages in the queue."""
        self._leave.set()
        self._thread.join()
        self._consumer.close()


def publish(producer: pulsar.Producer, keys: int, rounds: int) -> None:
    for number in range(rounds):
        for key in range(keys):
            producer.send_async(str(number).encode(), None, partition_key=f"k{key}")
    producer.flush()


def check_order(record: Record, keys: int, rounds: int) -> None:
    assert record.complete.wait(WAIT_SECONDS), sum(map(len, record.by_key.values()))
    assert record.by_key == {f"k{key}": list(range(rounds)) for key in range(keys)}


@pytest.mark.feature("F33")
@pytest.mark.parametrize("batching", ["none", "by key"])
def test_a_key_has_one_consumer_and_its_messages_come_in_order(
    new_client: Callable[[], pulsar.Client], topic: str, batching: str
) -> None:
    record = Record(30 * 20)
    workers = [Worker(new_client(), topic, f"c{i}", record) for i in range(4)]
    producer = new_client().create_producer(
        topic,
        batching_enabled=batching == "by key",
        batching_type=pulsar.BatchingType.KeyBased,
        batching_max_publish_delay_ms=5,
        block_if_queue_full=True,
    )
    publish(producer, 30, 20)
    check_order(record, 30, 20)
    for worker in workers:
        worker.close()
    assert all(len(owners) == 1 for owners in record.owners.values())
    assert len(set.union(*record.owners.values())) == 4


@pytest.mark.feature("F33")
def test_the_order_of_a_key_survives_consumers_that_come_and_go(
    new_client: Callable[[], pulsar.Client], topic: str
) -> None:
    rng = random.Random(5)
    keys, rounds = 40, 150
    record = Record(keys * rounds)
    clients = [new_client() for _ in range(3)]
    names = count()

    def join() -> Worker:
        return Worker(rng.choice(clients), topic, f"c{next(names)}", record)

    workers = [join(), join()]
    producer = new_client().create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    publishing = threading.Thread(target=publish, args=(producer, keys, rounds))
    publishing.start()
    while not record.complete.is_set() and next(names) < 60:
        if len(workers) < 2 or (len(workers) < 5 and rng.random() < 0.5):
            workers.append(join())
        else:
            workers.pop(rng.randrange(len(workers))).close()
        record.complete.wait(0.03)
    publishing.join()
    check_order(record, keys, rounds)
    for worker in workers:
        worker.close()
    assert max(map(len, record.owners.values())) > 1, "no key ever moved"


@pytest.mark.feature("F33")
def test_sticky_consumers_get_the_ranges_they_name(
    new_client: Callable[[], pulsar.Client], topic: str
) -> None:
    def policy(*ranges: tuple[int, int]) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(
            pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges)
        )

    record = Record(50)
    halves = [(0, 32767), (32768, 65535)]
    client = new_client()
    workers = [
        Worker(client, topic, f"c{i}", record, key_shared_policy=policy(half))
        for i, half in enumerate(halves)
    ]
    with pytest.raises(pulsar.ConsumerAssignError):
        client.subscribe(topic, "s", KEY_SHARED, key_shared_policy=policy((5, 6)))
    publish(client.create_producer(topic, batching_enabled=False), 50, 1)
    check_order(record, 50, 1)
    for worker in workers:
        worker.close()
    upper_half = {key for key, owners in record.owners.items() if owners == {"c1"}}
    assert upper_half == {key for key in record.owners if murmur3_32(key) % 65536 > 32767}
