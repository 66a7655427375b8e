"""Ten stream consumers come and go for a minute at a real broker, which is killed in hand-overs."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pulsark.dispatch.scalable.limits import (
    SEGMENT_HAND_OVER_SECONDS,
    STREAM_CONSUMER_GRACE_SECONDS,
)
from pulsark.wire import pulsar_pb2 as pb
from tests.support.standalone import Standalone
from tests.support.stream_consumers import TOPIC, StreamConsumer, Truth
from tests.support.wire_client import Closed, WireClient
from tests.support.wire_frames import Received, received

NAMES = [f"c{number}" for number in range(10)]
PARTITIONS = 8
SECONDS = 60.0
KILLS = 3
QUIET = 2 * (SEGMENT_HAND_OVER_SECONDS + STREAM_CONSUMER_GRACE_SECONDS)


class Socket:
    """One connection of a consumer."""

    def __init__(self, port: int) -> None:
        self._client = WireClient(port)
        self.hang_up = self._client.close

    def send(self, *commands: pb.BaseCommand) -> None:
        for command in commands:
            self._client.send(command)

    def arrived(self) -> Iterator[tuple[pb.BaseCommand, Received | None]]:
        with suppress(TimeoutError, Closed):
            while True:
                for command, section in self._client._receive(time.monotonic() + 0.001):
                    yield command, None if section is None else received(command, section)


class Drive:
    """The consumers and a producer over the lives of a broker."""

    def __init__(self, broker: Standalone) -> None:
        self.random = random.Random(7)
        self.broker = broker
        self.truth = Truth(PARTITIONS)
        self.here: dict[str, StreamConsumer] = {}
        self._publish_from()

    def _publish_from(self) -> None:
        self._producer = WireClient(self.broker.broker_port)
        for number in range(PARTITIONS):
            self._producer.producer(f"{TOPIC}-partition-{number}", number, f"p{number}")

    def _publish(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        number = self.truth.published[partition]
        self._producer.publish(b"%d" % number, partition, number, partition_key=f"k{number % 3}")
        self.truth.published[partition] += 1

    def go_on(self, seconds: float, *, restless: bool) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and (restless or not self.is_settled):
            if restless:
                for _ in range(5):
                    self._publish()
                if self.random.random() < 0.1:
                    self._something()
            for consumer in list(self.here.values()):
                if self.random.random() < 0.5:
                    consumer.step()
            time.sleep(0.01)

    @property
    def is_settled(self) -> bool:
        shares = [consumer.share or set() for consumer in self.here.values()]
        return self.truth.is_complete and sum(map(len, shares)) == PARTITIONS

    def _something(self) -> None:
        name = self.random.choice(NAMES)
        consumer = self.here.pop(name, None)
        if consumer is None:
            self.come(name)
        elif self.random.random() < 0.6:
            consumer.leave(clean=self.random.random() < 0.5)
        else:
            consumer.vanish()

    def come(self, name: str) -> None:
        self.here[name] = StreamConsumer(name, Socket(self.broker.broker_port), self.truth)

    def kill_in_a_hand_over(self) -> None:
        """Somebody comes, who is to get what others have not given up."""
        until = time.monotonic() + 60
        while not self._handed_over():
            assert time.monotonic() < until, "nothing changes hands"
            while len(self.here) > 2:
                self.here.pop(next(iter(self.here))).leave(clean=True)
            self.go_on(QUIET, restless=False)
            self.come(next(name for name in NAMES if name not in self.here))
            time.sleep(0.2)
        self.broker.kill()
        for consumer in self.here.values():
            consumer.vanish()
        self.broker.start()
        self._publish_from()
        for name in list(self.here):
            self.come(name)

    def _handed_over(self) -> bool:
        path = TOPIC.replace("://", "/")
        url = f"{self.broker.web_url}/admin/v2/{path}/partitioned-stats?perPartition=false"
        with urllib.request.urlopen(url, timeout=30) as answer:
            groups = json.load(answer).get("scalable", {"groups": []})["groups"]
        return any(group["segmentsHandedOver"] for group in groups)


@pytest.mark.chaos
def test_each_message_is_one_consumers_at_a_time_and_none_is_lost(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as broker:
        url = f"{broker.web_url}/admin/v2/{TOPIC.replace('://', '/')}/partitions"
        request = urllib.request.Request(url, str(PARTITIONS).encode(), method="PUT")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=60).close()
        drive = Drive(broker)
        for _ in range(KILLS):
            drive.go_on(SECONDS / (KILLS + 1), restless=True)
            drive.kill_in_a_hand_over()
        drive.go_on(SECONDS / (KILLS + 1), restless=True)
        if not drive.here:
            drive.come(NAMES[0])
        drive.go_on(QUIET, restless=False)
        assert drive.is_settled
        assert drive.truth.hand_overs > 10
        shares = [k for consumer in drive.here.values() for k in consumer.share or ()]
        assert sorted(shares) == list(range(PARTITIONS))
