"""Whether a tenant at its publish rate harms others: ``python -m benchmarks.publish_rates``.

One client publishes a message every 10 ms and waits for its receipt: in each round first alone,
then beside others who publish as fast as the broker reads, to a topic with a publish rate. With
``--check`` it exits 1 if in the median of all rounds their topic gets more or less than its rate,
or the p99 of the first is above twice what it was. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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
ROUNDS = 5
SECONDS = 5.0
SETTLE_SECONDS = 1.0
EVERY_SECONDS = 0.010
RATE_TOLERANCE = 0.05
FLOODED = topic_path(TopicName.parse(TOPIC))
Stats = Callable[[], dict[str, Any]]
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


class Others:
    """Processes that publish as fast as they may, and can be told to pause."""

    def __init__(self, processes: list[int]) -> None:
        self._processes = processes
        for process in processes:
            # Clients have machines of their own: these must not take the broker's processor.
            os.setpriority(os.PRIO_PROCESS, process, 19)

    def pause(self) -> None:
        self._all(signal.SIGSTOP)

    def go_on(self) -> None:
        self._all(signal.SIGCONT)

    def _all(self, told: signal.Signals) -> None:
        for process in self._processes:
            os.kill(process, told)
        time.sleep(SETTLE_SECONDS)


class Round(NamedTuple):
    """What one round found: waits without and beside the others, and the others' rate."""

    alone: Waits
    crowded: Waits
    bytes_per_second: float


def one_round(publisher: Publisher, others: Others, stats: Stats, seconds: float) -> Round:
    """The publisher alone, then beside the others, so that both see the same disk."""
    others.pause()
    alone = publisher.run(seconds)
    others.go_on()
    began, before = time.monotonic(), stats()
    crowded = publisher.run(seconds)
    passed, after = time.monotonic() - began, stats()
    return Round(alone, crowded, (after["bytesInCounter"] - before["bytesInCounter"]) / passed)


def measured(broker: Pulsark, rate: int, others: int, rounds: int, seconds: float) -> list[Goal]:
    """What it came to."""
    with AdminClient(broker.admin_url) as admin, ExitStack() as stack:
        admin.call("PUT", "/namespaces/public/quiet")
        a_producer(Client(broker.port))
        policy = {"publishThrottlingRateInMsg": 0, "publishThrottlingRateInByte": rate}
        admin.call("POST", f"{FLOODED}/publishRate", policy)
        publisher = Publisher(broker.port)
        duration = rounds * 2 * (seconds + SETTLE_SECONDS) + 60
        kind = "SEND of 1 KiB"
        flood = Others(
            [
                stack.enter_context(beside(flooding, broker.port, kind, duration))
                for _ in range(others)
            ]
        )
        found = []
        for number in range(rounds):
            found.append(
                one_round(publisher, flood, lambda: admin.get(f"{FLOODED}/stats"), seconds)
            )
            print(f"round {number + 1} of {rounds}")
            for name, waits in (("alone", found[-1].alone), ("beside", found[-1].crowded)):
                p50, p99, longest = (1e3 * wait for wait in waits[1:])
                print(f"  {name:<8}{p50:>8.2f} ms p50{p99:>8.2f} ms p99{longest:>8.2f} longest")
    ratio = median(each.crowded.p99 / each.alone.p99 for each in found)
    share = median(each.bytes_per_second for each in found) / rate
    return [
        Goal("p99 beside a topic at its limit / alone", ratio, "at most", 2.0),
        Goal("the topic's rate / its limit", share, "at least", 1 - RATE_TOLERANCE),
        Goal("the topic's rate / its limit", share, "at most", 1 + RATE_TOLERANCE),
    ]


def main() -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=BYTES_PER_SECOND, help="bytes a second")
    parser.add_argument("--others", type=int, default=OTHERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each half of a round")
    add_check(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        broker = Pulsark(Path(home) / "broker")
        started(broker)
        try:
            goals = measured(broker, options.rate, options.others, options.rounds, options.seconds)
            broker.check()
        finally:
            broker.stop()
    return exit_code(goals, options.check)


if __name__ == "__main__":
    sys.exit(main())
