"""Load on a cluster while something fails, and whether all that was promised was kept."""

from __future__ import annotations

import json
import time
import urllib.request
from itertools import pairwise

import pulsar

from tests.support.acknowledger import Acknowledger
from tests.support.faulty_cluster import BrokerProcess, FaultyCluster
from tests.support.history import History, Id, Payload, violations
from tests.support.several_brokers import Load, wait_for

LOOKUP = "/lookup/v2/topic/persistent/public/default"
SETTLE_SECONDS = 120.0
"""For clients to go on after a fault; they wait longer and longer between attempts."""


def owner_by(broker: BrokerProcess, topic: str) -> str:
    """The same as one of the brokers tells it."""
    with urllib.request.urlopen(f"{broker.web_url}{LOOKUP}/{topic}", timeout=5) as answer:
        url: str = json.load(answer)["brokerUrl"]
        return url


def owner_of(cluster: FaultyCluster, topic: str) -> str:
    """The service URL of the broker that has a topic. Raises ``OSError`` if none tells."""
    last: OSError | None = None
    for broker in cluster.brokers:
        try:
            return owner_by(broker, topic)
        except OSError as error:
            last = error
    assert last is not None
    raise last


class CheckedLoad:
    """Publishes to topics, consumes and acknowledges, and checks at the end."""

    def __init__(self, cluster: FaultyCluster, name: str, topics: int = 6) -> None:
        self._cluster = cluster
        self.topics = [f"{name}-{number}" for number in range(topics)]

    def __enter__(self) -> CheckedLoad:
        # Attempts that fail are what these tests are made of.
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(self._cluster.client_log))
        self.client = pulsar.Client(self._cluster.service_url, logger=logger)
        self.acknowledgers = [self._acknowledger(0), self._acknowledger(1)]
        self.load = Load(self.client, self.topics).__enter__()
        for consumer in self.acknowledgers:
            consumer.start()
        self.wait_until_all_go_on()
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self.load.__exit__()
        try:
            if kind is None:
                self._check()
        finally:
            for consumer in self.acknowledgers:
                consumer.stop()
            self.client.shutdown()

    def _acknowledger(self, number: int) -> Acknowledger:
        topic = self.topics[number]

        def port() -> int:
            return int(owner_of(self._cluster, topic).rpartition(":")[2])

        name = f"persistent://public/default/{topic}"
        return Acknowledger(port, name, number, cumulative=bool(number))

    def wait_until_all_go_on(self, seconds: float = SETTLE_SECONDS) -> None:
        """Return once each topic has answered and delivered some more messages."""
        load = self.load
        counts = {t: (len(load.receipts[t]), len(load.delivered[t])) for t in self.topics}
        wait_for(
            lambda: all(
                len(load.receipts[t]) > counts[t][0] + 5
                and len(load.delivered[t]) > counts[t][1] + 5
                for t in self.topics
            ),
            seconds,
        )

    def longest_silence(self, since: float) -> float:
        """The longest time in which any of the topics had no receipt, up to now."""
        silences = []
        for topic in self.topics:
            times = [at for at in self.load.times[topic] if at >= since]
            silences.append(max(b - a for a, b in pairwise([since, *times, time.monotonic()])))
        return max(silences)

    def _check(self) -> None:
        wait_for(
            lambda: all(
                self.load.delivered[topic] >= set(self.load.receipts[topic])
                for topic in self.topics
            ),
            SETTLE_SECONDS,
        )
        history = History()
        for number, topic in enumerate(self.topics):
            history.sent |= {(topic, sequence) for sequence in range(self.load.rounds)}
            history.log += self._read(topic, number)
        for (topic, payload), id_ in self.load.ids.items():
            number = self.topics.index(topic)
            history.receipts[topic, int(payload.split()[1])] = _identify(id_, number)
        for consumer in self.acknowledgers:
            there = {(i.ledger_id, i.entry_id) for i, (topic, _) in history.log
                     if topic == self.topics[int(consumer.is_cumulative)]}  # fmt: skip
            wait_for(lambda c=consumer, t=there: c.has_all(t), SETTLE_SECONDS)  # type: ignore[misc]
            consumer.finish()
            history.subscriptions.append(consumer.seen)
        assert violations(history) == []
        assert self.load.failures == []

    def _read(self, topic: str, number: int) -> list[tuple[Id, Payload]]:
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest)
        log: list[tuple[Id, Payload]] = []
        while reader.has_message_available():
            message = reader.read_next(60_000)
            sequence = int(message.data().split()[1])
            log.append((_identify(message.message_id(), number), (topic, sequence)))
        reader.close()
        return log


def _identify(id_: pulsar.MessageId, partition: int) -> Id:
    return Id(partition, id_.ledger_id(), id_.entry_id(), id_.batch_index())
