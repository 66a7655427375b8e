"""A namespace of very many topics: ``python -m benchmarks.many_topics``.

How long clients with a pattern wait for its topics, all of them at once, what that takes of the
broker's memory, and how long another client's PING waits meanwhile; then the same for lists of
topics, with and without a pattern. Exits 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import Request, urlopen

from benchmarks.brokers import Pulsark
from benchmarks.fairness import Client, Pings, Waits, started
from pulsark.wire import pulsar_pb2 as pb

TOPICS = 100_000
CLIENTS = 50
PARTITIONS = 10_000
"""Topics are made as partitions, because that is quick."""
SECONDS_GOAL = 5.0
MEMORY_GOAL_BYTES = 50 << 20
P99_GOAL_SECONDS = 0.050

Command = pb.BaseCommand


def watching() -> pb.BaseCommand:
    command = Command(type=Command.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.namespace, request.topics_pattern = "public/default", "public/default/p.*"
    request.watcher_id = request.request_id = 1
    return command


def listing(pattern: str = "") -> pb.BaseCommand:
    command = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace, request.topics_pattern = 1, "public/default", pattern
    return command


def measured(port: int, work: Callable[[], None]) -> tuple[float, Waits]:
    """How long it took, and how long another client waited for answers meanwhile."""
    waits: list[Waits] = []
    done = threading.Event()
    pings = Pings(port)

    def ask() -> None:
        while not done.is_set():
            waits.append(pings.run(0.2))

    thread = threading.Thread(target=ask)
    thread.start()
    begun = time.monotonic()
    work()
    took = time.monotonic() - begun
    done.set()
    thread.join()
    return took, max(waits, key=lambda found: found.longest)


def drain(connection: socket.socket, kind: int) -> None:
    """Read up to a command of a kind, without a look inside: the broker is measured."""
    while True:
        head = connection.recv(10, socket.MSG_WAITALL)
        left = int.from_bytes(head[:4], "big") - 6
        while left:
            left -= len(connection.recv(min(left, 1 << 20)))
        if head[9] == kind:  # the first field is the type
            return


def create(web_url: str, topics: int) -> None:
    for number in range(0, topics, PARTITIONS):
        path = f"persistent/public/default/p{number}/partitions"
        body = json.dumps(min(PARTITIONS, topics - number)).encode()
        headers = {"content-type": "application/json"}
        urlopen(Request(f"{web_url}/admin/v2/{path}", body, headers, method="PUT")).close()


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory() as home:
        broker = Pulsark(Path(home) / "broker")
        started(broker)
        try:
            info = json.loads((Path(home) / "broker" / "data" / "standalone.json").read_text())
            create(info["webServiceUrl"], options.topics)
            pid = int(info["pid"])
            clients = [Client(broker.port) for _ in range(options.clients)]

            def ask(command: pb.BaseCommand, answer: int) -> Callable[[], None]:
                def run() -> None:
                    for client in clients:
                        client.send(command)
                    for client in clients:
                        drain(client.socket, answer)

                return run

            listed = Command.GET_TOPICS_OF_NAMESPACE_RESPONSE
            print(f"{options.topics} topics, {options.clients} clients at once")
            for name, command, answer in (
                ("follow a pattern", watching(), Command.WATCH_TOPIC_LIST_SUCCESS),
                ("list all", listing(), listed),
                ("list a pattern", listing("public/default/p.*"), listed),
            ):
                before = resident_bytes(pid)
                seconds, waits = measured(broker.port, ask(command, answer))
                grown = resident_bytes(pid) - before
                fine = seconds <= SECONDS_GOAL and waits.p99 <= P99_GOAL_SECONDS
                fine = fine and grown <= MEMORY_GOAL_BYTES
                missed = missed or not fine
                print(
                    f"{name:<18}{seconds:8.2f} s{grown / (1 << 20):8.1f} MiB   others: p50 "
                    f"{1e3 * waits.median:6.1f}  p99 {1e3 * waits.p99:6.1f}  longest "
                    f"{1e3 * waits.longest:6.1f} ms{'' if fine else '   missed'}",
                    flush=True,
                )
        finally:
            broker.stop()
    sys.exit(missed)


if __name__ == "__main__":
    main()
