"""Whether a tenant at its publish rate harms others: ``python -m benchmarks.publish_rates``.

One client publishes a message every 10 ms and waits for its receipt: first alone, then beside
others who publish as fast as the broker reads, to a topic with a publish rate. With ``--check`` it
exits 1 if their topic gets more or less than its rate, or if the p99 of the first is above twice
what it was. Beside other work on the machine the p99 says nothing: run it on an idle one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.brokers import Pulsark
from benchmarks.fairness import (
    TOPIC,
    Client,
    Command,
    Waits,
    a_producer,
    beside,
    flooding,
    sent,
    started,
)
from benchmarks.goals import Goal, add_check, exit_code
from pulsark.admin_client.client import AdminClient
from pulsark.admin_client.paths import topic_path
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName

BYTES_PER_SECOND = 5_000_000
MESSAGE_BYTES = 1024
OTHERS = 4
SECONDS = 20.0
SETTLE_SECONDS = 5.0
EVERY_SECONDS = 0.010
RATE_TOLERANCE = 0.05
FLOODED = topic_path(TopicName.parse(TOPIC))
QUIET_TOPIC = "persistent://public/quiet/t"


class Publisher:
    """Publishes one message after the other, each when the one before has its receipt."""

    def __init__(self, port: int) -> None:
        self._client = Client(port)
        request = pb.CommandProducer(topic=QUIET_TOPIC, producer_id=1, request_id=1)
        self._client.send(Command(type=Command.PRODUCER, producer=request))
        self._client.take(Command.PRODUCER_SUCCESS)
        self._message = sent(MESSAGE_BYTES)

    def run(self, seconds: float) -> Waits:
        """How long the receipts took."""
        end = time.monotonic() + seconds
        waits: list[float] = []
        while True:
            began = time.monotonic()
            self._client.socket.sendall(self._message)
            self._client.take(Command.SEND_RECEIPT)
            waits.append(time.monotonic() - began)
            if began >= end:
                return Waits.of(waits)
            time.sleep(EVERY_SECONDS)


def measured(broker: Pulsark, rate: int, others: int, seconds: float) -> list[Goal]:
    """What it came to."""
    with AdminClient(broker.admin_url) as admin:
        admin.call("PUT", "/namespaces/public/quiet")
        a_producer(Client(broker.port))
        policy = {"publishThrottlingRateInMsg": 0, "publishThrottlingRateInByte": rate}
        admin.call("POST", f"{FLOODED}/publishRate", policy)
        publisher = Publisher(broker.port)
        publisher.run(SETTLE_SECONDS)
        alone = publisher.run(seconds)
        with ExitStack() as stack:
            for _ in range(others):
                duration = seconds + 60
                stack.enter_context(beside(flooding, broker.port, "SEND of 1 KiB", duration))
            publisher.run(SETTLE_SECONDS)
            began, before = time.monotonic(), admin.get(f"{FLOODED}/stats")
            crowded = publisher.run(seconds)
            after = admin.get(f"{FLOODED}/stats")
            passed = time.monotonic() - began
    reached = (after["bytesInCounter"] - before["bytesInCounter"]) / passed
    for name, waits in (("alone", alone), ("beside the others", crowded)):
        p50, p99, longest = (1e3 * wait for wait in waits[1:])
        print(f"{name:<20}{p50:>8.2f} ms p50{p99:>8.2f} ms p99{longest:>8.2f} ms longest")
    share = reached / rate
    return [
        Goal("p99 beside a topic at its limit / alone", crowded.p99 / alone.p99, "at most", 2.0),
        Goal("the topic's rate / its limit", share, "at least", 1 - RATE_TOLERANCE),
        Goal("the topic's rate / its limit", share, "at most", 1 + RATE_TOLERANCE),
    ]


def main() -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=BYTES_PER_SECOND, help="bytes a second")
    parser.add_argument("--others", type=int, default=OTHERS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    add_check(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        broker = Pulsark(Path(home) / "broker")
        started(broker)
        try:
            goals = measured(broker, options.rate, options.others, options.seconds)
            broker.check()
        finally:
            broker.stop()
    return exit_code(goals, options.check)


if __name__ == "__main__":
    sys.exit(main())
