"""Commands of Pulsar 5's clients in any order, with ids that clash: all are answered."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from pulsark.dispatch.scalable.limits import (
    SEGMENT_HAND_OVER_SECONDS,
    SEGMENT_WAIT_SECONDS,
    STREAM_CONSUMER_GRACE_SECONDS,
)
from pulsark.limits import TOPIC_FEED_LINGER_SECONDS
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import BrokerInMemory, Client, Command, scenario

PREFIX = "public/default/"
QUIET = (
    STREAM_CONSUMER_GRACE_SECONDS
    + 2 * SEGMENT_HAND_OVER_SECONDS
    + SEGMENT_WAIT_SECONDS
    + TOPIC_FEED_LINGER_SECONDS
)
TOPICS = ["p", "q", "t", "new", "p-partition-0", "..", "x/y"]
KINDS = [
    *["scalableTopicLookup", "scalableTopicClose", "scalableTopicUnsubscribe", "close_consumer"],
    *["watchScalableTopics", "watchScalableTopicsClose", "watchTcAssignments"],
    *["scalableTopicSubscribe", "subscribe"] * 2,
]


class Odd:
    """A client that sends what it likes."""

    def __init__(self, broker: BrokerInMemory, rng: random.Random) -> None:
        self.client = Client(broker)
        self.random = rng
        self.asked: set[int] = set()
        self.answered: Counter[int] = Counter()
        self._next = 0

    def send(self) -> None:
        name = self.random.choice(KINDS)
        number = Command.DESCRIPTOR.fields_by_name[name].number
        command = Command(type=number)  # type: ignore[arg-type]
        request = getattr(command, name)
        request.SetInParent()
        pick = self.random.randrange
        for field in request.DESCRIPTOR.fields:
            if field.name == "request_id":
                self._next += 1
                request.request_id = self._next
                if name != "subscribe":  # those that are closed meanwhile hear no more of it
                    self.asked.add(self._next)
            elif field.name in ("session_id", "watch_id", "consumer_id", "watcher_id"):
                setattr(request, field.name, pick(3))
            elif field.name == "topic":
                domain = self.random.choice(["persistent", "topic", "non-persistent"])
                local = self.random.choice(TOPICS)
                if name == "subscribe":
                    domain, local = "persistent", f"p-partition-{pick(3)}"
                request.topic = f"{domain}://{PREFIX}{local}"
            elif field.name == "subscription":
                request.subscription = "s"
            elif field.name == "consumer_name":
                request.consumer_name = self.random.choice("ab")
                if name == "subscribe":
                    request.consumer_name += request.topic[-1].join(["-seg-", ""])
            elif field.name == "namespace":
                request.namespace = self.random.choice(["public/default", "public/none", "..", ""])
            elif field.name == "subType":
                request.subType = pb.CommandSubscribe.Exclusive
            elif field.name == "consumer_type":
                request.consumer_type = self.random.choice([pb.STREAM, pb.CHECKPOINT])
        self.client.send(command)

    def hear(self) -> None:
        self.client._read()
        for command in self.client.answers:
            name = Command.DESCRIPTOR.fields_by_number[command.type].name
            part = getattr(command, name)
            if name != "close_consumer" and "request_id" in part.DESCRIPTOR.fields_by_name:
                self.answered[part.request_id] += 1
        self.client.answers.clear()


async def let_pass(seconds: float, odd: list[Odd]) -> None:
    """Time, in which clients hear, and answer pings."""
    while seconds >= 0:
        await asyncio.sleep(min(seconds, 0.1))
        seconds -= 0.1
        for each in odd:
            each.hear()


@pytest.mark.parametrize("seed", range(8))
def test_all_requests_are_answered_once_and_nothing_stays(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    @scenario()
    async def run(broker: BrokerInMemory) -> None:
        rng = random.Random(seed)
        for name in "pq":
            topic = TopicName.parse(f"persistent://{PREFIX}{name}")
            await broker.broker.creation.create_partitioned_topic(topic, 3, {})
        odd = [Odd(broker, rng) for _ in range(3)]
        for _ in range(80):
            for _ in range(rng.randrange(4)):
                rng.choice(odd).send()
            await let_pass(rng.choice([0, 0, 0.001, 0.1, 3]), odd)
        await let_pass(QUIET, odd)
        for each in odd:
            assert each.client.connection.is_open
            assert each.asked <= set(each.answered)
            assert set(each.answered.values()) <= {1}
            each.client.hang_up()
        await asyncio.sleep(QUIET)
        assert broker.broker.scalable is not None
        assert await broker.broker.scalable.sums() == (0, 0, 0, 0, 0)
        assert not broker.broker.topic_feeds._feeds

    with caplog.at_level("WARNING"):
        run()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
