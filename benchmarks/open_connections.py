"""What idle clients cost a broker: ``python -m benchmarks.open_connections``.

Each client has one connection, with one consumer of a Shared subscription on one of a hundred
topics. Prints the broker's memory for each: connections alone, then with their consumers.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.brokers import Pulsark
from benchmarks.fairness import Client, Command, started
from benchmarks.usage import resident_bytes
from pulsark.wire import pulsar_pb2 as pb

CONNECTIONS = 4000
TOPICS = 100
WARM_UP = 200
SETTLE_SECONDS = 3.0


def subscribe(client: Client, number: int) -> None:
    command = Command(type=Command.SUBSCRIBE)
    request = command.subscribe
    request.topic = f"persistent://public/default/idle-{number % TOPICS}"
    request.subscription, request.subType = "s", pb.CommandSubscribe.Shared
    request.consumer_id, request.request_id = 1, 1
    client.send(command)
    client.take(Command.SUCCESS)
    flow = Command(type=Command.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, 1000
    client.send(flow)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    count = parser.parse_args().connections
    with tempfile.TemporaryDirectory() as home:
        broker = Pulsark(Path(home) / "broker")
        started(broker)
        try:
            clients = [Client(broker.port) for _ in range(WARM_UP)]
            for number, client in enumerate(clients):
                subscribe(client, number)
            before = settled(broker)
            fresh = [Client(broker.port) for _ in range(count)]
            connected = settled(broker)
            for number, client in enumerate(fresh):
                subscribe(client, number)
            consuming = settled(broker)
            for what, more in (("connection", connected), ("with a consumer", consuming)):
                print(f"{what}: {(more - before) / count / 1024:.1f} KiB of each of {count}")
        finally:
            broker.stop()


def settled(broker: Pulsark) -> int:
    time.sleep(SETTLE_SECONDS)
    return resident_bytes(broker.pid)


if __name__ == "__main__":
    main()
