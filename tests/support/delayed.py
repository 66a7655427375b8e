"""Delayed messages in a broker in memory: who sends them, and when they come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsark.dispatch.subscription import delayed_delivery
from pulsark.dispatch.subscription.delayed_tracker import DelayedDeliveryTracker
from pulsark.dispatch.topic.topic import Topic
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.sim.clock import EPOCH_MS
from tests.support.broker_clients import BrokerInMemory, Client
from tests.support.wire_frames import publish

TOPIC = "persistent://public/default/t"
SHARED, KEY_SHARED = pb.CommandSubscribe.Shared, pb.CommandSubscribe.Key_Shared
Id = tuple[int, int]


def now_ms() -> int:
    return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)


def topic_of(broker: BrokerInMemory) -> Topic:
    topic = broker.broker.topics.get_loaded(TopicName.parse(TOPIC))
    assert topic is not None
    return topic


async def shown(broker: BrokerInMemory, subscription: str = "s") -> dict[str, Any]:
    return (await broker.broker.stats.topic(topic_of(broker)))["subscriptions"][subscription]


class Sender(Client):
    """Publishes with delays in seconds; 0: none."""

    async def begin(self) -> Sender:
        await self.produce(TOPIC, 0)
        return self

    async def delayed(self, *delays: float) -> list[Id]:
        return [
            await self.publish(i, deliver_at_time=now_ms() + round(delay * 1000))
            if delay
            else await self.publish(i)
            for i, delay in enumerate(delays)
        ]

    def delayed_at_once(self, count: int, delay: float, **fields: Any) -> None:
        """Many of them, without waiting for receipts."""
        at = now_ms() + round(delay * 1000)
        frames = [publish(1, i, b"x", deliver_at_time=at, **fields) for i in range(count)]
        self.send_bytes(b"".join(frames))


async def sender(broker: BrokerInMemory) -> Sender:
    return await Sender(broker).begin()


async def arrivals(client: Client, seconds: float) -> list[tuple[float, Id, int]]:
    """What comes within a time: when, in tenths of a second from now, which and how often."""
    loop = asyncio.get_running_loop()
    start, found = loop.time(), []
    while loop.time() < start + seconds:
        await asyncio.sleep(0.05)
        for each in await client.deliveries():
            message = each.message
            when = round(loop.time() - start, 1)
            place = (message.message_id.ledgerId, message.message_id.entryId)
            found.append((when, place, message.redelivery_count))
    return found


def small_buckets(monkeypatch: pytest.MonkeyPatch, keys: int = 8) -> None:
    """Buckets of so many keys, in pages of three, are stored at once."""
    tracker = lambda: DelayedDeliveryTracker(keys // 2, keys, 3)  # noqa: E731
    monkeypatch.setattr(delayed_delivery, "DelayedDeliveryTracker", tracker)
    monkeypatch.setattr(delayed_delivery, "BUCKET_KEYS", keys)
    monkeypatch.setattr(delayed_delivery, "STORED_FROM", 1)
