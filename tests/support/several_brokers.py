"""A standalone of several processes, and clients that go on whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pulsar

from tests.support.standalone import Standalone


def kill(pid: int) -> None:
    """SIGKILL: nothing gets a chance to be written."""
    os.kill(pid, signal.SIGKILL)


WAIT_SECONDS = 60.0
"""For what takes a second or two where nobody else wants the processors."""


def wait_for(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    """Return once it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, zombies apart."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between open and read
        return False


def owners(standalone: Standalone, topics: list[str]) -> dict[str, str]:
    """The address of the broker that serves each topic, as HTTP says it."""
    found = {}
    for topic in topics:
        url = f"{standalone.web_url}/lookup/v2/topic/persistent/public/default/{topic}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            found[topic] = json.load(answer)["brokerUrl"]
    return found


def spread(standalone: Standalone, topics: list[str], first: int = 0) -> None:
    """Let each broker in turn have a bundle of topics, whoever has them now.

    With another broker as the first one each bundle moves on.
    """
    domain = f"{standalone.web_url}/lookup/v2/topic/persistent/public/default"
    namespace = f"{standalone.web_url}/admin/v2/namespaces/public/default"
    with urllib.request.urlopen(
        f"{standalone.web_url}/admin/v2/brokers/standalone", timeout=20
    ) as answer:
        brokers = sorted(json.load(answer))
    owners(standalone, topics)  # a bundle that nobody has cannot be moved
    bundles = set()
    for topic in topics:
        with urllib.request.urlopen(f"{domain}/{topic}/bundle", timeout=20) as answer:
            bundles.add(answer.read().decode())
    for number, bundle in enumerate(sorted(bundles)):
        query = f"destinationBroker={brokers[(first + number) % len(brokers)]}"
        request = urllib.request.Request(f"{namespace}/{bundle}/unload?{query}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
    wait_for(lambda: len(set(owners(standalone, topics).values())) == len(brokers))


@dataclass
class Load:
    """Publishes to topics until it is told to stop, and consumes them.

    It notes when receipts came, and what was delivered.
    """

    client: pulsar.Client
    topics: list[str]
    name: str = "load"
    """Of its subscription, and before each message."""
    receipts: dict[str, list[bytes]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    delivered: dict[str, set[bytes]] = field(default_factory=dict)
    ids: dict[tuple[str, bytes], pulsar.MessageId] = field(default_factory=dict)
    """Those of receipts."""
    rounds: int = 0
    """How many messages each topic was sent."""

    def __enter__(self) -> Load:
        self._ending = threading.Event()
        self._producers = {
            topic: self.client.create_producer(
                topic, send_timeout_millis=0, block_if_queue_full=True
            )
            for topic in self.topics
        }
        for topic in self.topics:
            self.receipts[topic], self.times[topic] = [], []
            self.delivered[topic] = set()
            self.client.subscribe(topic, self.name, message_listener=partial(self._take, topic))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        self._thread.join(60)
        for producer in self._producers.values():
            producer.flush()

    def wait_until_consumed(self) -> None:
        """Return once all was delivered that has a receipt."""
        wait_for(
            lambda: all(self.delivered[topic] >= set(self.receipts[topic]) for topic in self.topics)
        )

    def _run(self) -> None:
        while not self._ending.is_set():
            number = self.rounds
            self.rounds += 1
            for topic, producer in self._producers.items():
                payload = f"{self.name} {number}".encode()
                producer.send_async(
                    payload,
                    lambda result, id_, topic=topic, payload=payload: self._answered(
                        topic, payload, result, id_
                    ),
                )
            self._ending.wait(0.01)

    def _take(self, topic: str, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        self.delivered[topic].add(message.data())
        consumer.acknowledge(message)

    def _answered(
        self, topic: str, payload: bytes, result: pulsar.Result, id_: pulsar.MessageId
    ) -> None:
        if result != pulsar.Result.Ok:
            self.failures.append(f"{topic}: {result}")
            return
        self.ids[topic, payload] = id_
        self.receipts[topic].append(payload)
        self.times[topic].append(time.monotonic())

    def silence(self, topic: str, since: float) -> float:
        """The longest time without a receipt, from then on."""
        times = [since, *[at for at in self.times[topic] if at >= since]]
        return max(b - a for a, b in pairwise(times))


def read(client: pulsar.Client, topic: str, expected: list[bytes]) -> list[bytes]:
    """What is in a topic from its beginning, until all that is expected was there."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found, missing = [], set(expected)
    try:
        while missing:
            data = reader.read_next(timeout_millis=10_000).data()
            found.append(data)
            missing.discard(data)
    finally:
        reader.close()
    return found
