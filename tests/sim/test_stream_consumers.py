"""Ten stream consumers that come and go, and a broker that is killed meanwhile, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from pulsark.dispatch.scalable.limits import (
    SEGMENT_HAND_OVER_SECONDS,
    STREAM_CONSUMER_GRACE_SECONDS,
)
from pulsark.wire.topic_name import TopicName
from tests.scripts.process import Machine, Process
from tests.sim.loop import SimulatedCrash
from tests.sim.simulation import Simulation
from tests.support.broker_clients import Client, Command
from tests.support.stream_consumers import TOPIC, InMemory, StreamConsumer, Truth
from tests.support.wire_frames import publish

NAMES = [f"c{number}" for number in range(10)]
QUIET = 2 * (SEGMENT_HAND_OVER_SECONDS + STREAM_CONSUMER_GRACE_SECONDS)
TICK = 0.05
PROMPT = 0.3
"""The part of the ticks in which a client does something: others are quicker meanwhile."""


class Drive:
    """The consumers and a producer over the lives of a broker."""

    def __init__(self, seed: int, partitions: int) -> None:
        self.random = random.Random(seed)
        self.truth = Truth(partitions)
        self.machine = Machine()
        self.here: dict[str, StreamConsumer] = {}
        self.lives = 0
        self._process: Process
        self._producer: Client

    async def live(self, sim: Simulation, seconds: float, *, killed: bool) -> None:
        """One life of the broker."""
        self._process = Process(self.machine, sim)
        await self._process.start()
        if not self.lives:
            name = TopicName.parse(TOPIC)
            count = len(self.truth.published)
            await self._process.broker.creation.create_partitioned_topic(name, count, {})
        self.lives += 1
        await self._produce_from()
        for name in list(self.here):
            self._come(name)
        await self._for(seconds, restless=True)
        if killed:
            while not self._hands_over():
                await self._for(TICK, restless=True)
            raise SimulatedCrash("killed")
        if not self.here:
            self._come(NAMES[0])
        await self._for(QUIET, restless=False)
        self._check_shares()

    async def _produce_from(self) -> None:
        self._producer = Client(self._process)  # type: ignore[arg-type]
        for number in range(len(self.truth.published)):
            command = self._producer.producer_command(
                f"{TOPIC}-partition-{number}", f"p{number}", number
            )
            self._producer.send(command)
            await self._producer.take(Command.PRODUCER_SUCCESS, seconds=10)

    async def _publish(self) -> None:
        """To one partition; a number is published once it is confirmed."""
        partition = self.random.randrange(len(self.truth.published))
        number = self.truth.published[partition]
        self._producer.send_bytes(
            publish(partition, number, b"%d" % number, partition_key=f"k{number % 3}")
        )
        await self._producer.take(Command.SEND_RECEIPT, seconds=10)
        self.truth.published[partition] += 1

    async def _for(self, seconds: float, *, restless: bool) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            if restless:
                await self._publish()
                if self.random.random() < 0.08:
                    self._something()
            await asyncio.sleep(TICK)
            for consumer in list(self.here.values()):
                if self.random.random() < PROMPT:
                    consumer.step()

    def _something(self) -> None:
        name = self.random.choice(NAMES)
        consumer = self.here.pop(name, None)
        if consumer is None:
            self._come(name)
        else:
            what = self.random.choice(["leave", "close", "vanish", "come back"])
            if what in ("leave", "close"):
                consumer.leave(clean=what == "leave")
            else:
                consumer.vanish()
            if what == "come back":
                self._come(name)

    def _come(self, name: str) -> None:
        wire = InMemory(Client(self._process))  # type: ignore[arg-type]
        stubborn = self.random.random() < 0.15
        self.here[name] = StreamConsumer(name, wire, self.truth, stubborn=stubborn)

    def _hands_over(self) -> bool:
        scalable = self._process.broker.scalable
        return scalable is not None and any(g.shares.handed_over for g in scalable.groups.all())

    def _check_shares(self) -> None:
        shares = [share for c in self.here.values() if (share := c.share) is not None]
        assert len(shares) == len(self.here)
        assert sorted(k for share in shares for k in share) == list(range(len(self.truth.acked)))
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1

    def end(self) -> None:
        """The process is gone, and all connections with it."""
        self._process.end()
        self.machine.crash("all")
        for number in range(len(self.truth.holders)):
            self.truth.holders[number] = None


def run(seed: int, lives: list[float], partitions: int = 8) -> Truth:
    drive = Drive(seed, partitions)
    for number, seconds in enumerate(lives, 1):
        with Simulation(seed * 100 + number) as sim:
            killed = number < len(lives)
            assert sim.run_until_crash(drive.live(sim, seconds, killed=killed)) == killed
        drive.end()
    assert drive.truth.is_complete
    return drive.truth


@pytest.mark.parametrize("seed", [1, 2])
def test_each_message_is_one_consumers_at_a_time_and_none_is_lost(seed: int) -> None:
    truth = run(seed, [30.0])
    assert truth.hand_overs > 10
    assert truth.deliveries >= sum(truth.published)


def test_a_broker_killed_while_it_hands_segments_over_loses_none() -> None:
    truth = run(3, [8.0, 8.0, 8.0])
    assert truth.hand_overs > 5


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_histories_of_a_minute(seed: int) -> None:
    if seed % 2:
        run(seed, [60.0], partitions=1 + seed % 8)
    else:  # with fewer segments hardly any is on its way when the broker is to be killed
        run(seed, [15.0] * 4)
