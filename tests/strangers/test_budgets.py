"""Very many clients do their most expensive permitted operation at the same time.

What everybody else sees must hardly change: publishes, the event loop, the memory, and the process
itself. The full test has 1,000 clients for a minute. A few clients for some seconds run always.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import re
import threading
import time
import urllib.request
import zlib
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest

from pulsark.admin_client.client import AdminClient
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.frames import encode_command
from tests.support.standalone import Standalone
from tests.support.wire_client import WireClient

Command = pb.BaseCommand
TOPIC = "persistent://public/default/"
PEEK = "/admin/v2/persistent/public/default/bomb/examinemessage?initialPosition=earliest"
PAYLOAD_BYTES = 16 << 20
MIB = 1 << 20

Operation = Callable[[Standalone, "Prepared"], Awaitable[None]]


class Prepared:
    """Bytes that all clients send: building them would take the processor from the broker."""

    def __init__(self) -> None:
        ack = Command(type=Command.ACK)
        ack.ack.consumer_id, ack.ack.ack_type = 1, pb.CommandAck.Individual
        for number in range(60_000):
            ack.ack.message_id.add(ledgerId=1, entryId=number)
        self.ack = encode_command(ack)
        names = ",".join(f'"{number:x}"' for number in range(130_000))
        self.claim = _http(
            "PUT", "/admin/v2/spark-queries/q", f'{{"client":"x","topics":[{names}]}}'
        )
        lists = "[" + "[]," * 340_000 + "[]]"
        self.lists = _http("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", lists)
        self.peek = _http("GET", PEEK)
        self.metrics = _http("GET", "/metrics")
        connect = Command(type=Command.CONNECT)
        connect.connect.client_version, connect.connect.protocol_version = "test", 21
        self.connect = encode_command(connect)
        subscribe = Command(type=Command.SUBSCRIBE)
        request = subscribe.subscribe
        request.topic, request.subscription = f"{TOPIC}acked", "s"
        request.subType, request.consumer_id, request.request_id = pb.CommandSubscribe.Shared, 1, 1
        self.subscribe = encode_command(subscribe)
        ping = Command(type=Command.PING)
        ping.ping.SetInParent()
        self.ping = encode_command(ping)
        lookup = Command(type=Command.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = f"{TOPIC}acked", 1
        self.lookups = encode_command(lookup) * 1000
        topics = Command(type=Command.GET_TOPICS_OF_NAMESPACE)
        listed = topics.getTopicsOfNamespace
        listed.namespace, listed.request_id = "public/default", 1
        self.topics = encode_command(topics) * 100


def _http(method: str, target: str, body: str = "") -> bytes:
    return (
        f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


@contextlib.asynccontextmanager
async def _connected(port: int):  # type: ignore[no-untyped-def]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _in_the_protocol(broker: Standalone, prepared: Prepared, what: bytes) -> None:
    async with _connected(broker.broker_port) as (reader, writer):
        writer.write(prepared.connect + prepared.subscribe)
        await reader.read(4096)
        while True:
            writer.write(what + prepared.ping)
            await writer.drain()
            await reader.read(1 << 16)
            await asyncio.sleep(0.1)


async def acknowledge(broker: Standalone, prepared: Prepared) -> None:
    await _in_the_protocol(broker, prepared, prepared.ack)


async def look_up(broker: Standalone, prepared: Prepared) -> None:
    await _in_the_protocol(broker, prepared, prepared.lookups)


async def list_topics(broker: Standalone, prepared: Prepared) -> None:
    await _in_the_protocol(broker, prepared, prepared.topics)


async def _over_http(broker: Standalone, request: bytes, *, reads: bool) -> None:
    port = int(broker.web_url.rpartition(":")[2])
    async with _connected(port) as (reader, writer):
        while True:
            writer.write(request)
            await writer.drain()
            if not reads:
                writer.transport.pause_reading()
                await asyncio.sleep(3600)
            if not await reader.read(1 << 16):
                return
            await asyncio.sleep(0.1)


async def claim(broker: Standalone, prepared: Prepared) -> None:
    await _over_http(broker, prepared.claim, reads=True)


async def send_lists(broker: Standalone, prepared: Prepared) -> None:
    await _over_http(broker, prepared.lists, reads=True)


async def peek_unread(broker: Standalone, prepared: Prepared) -> None:
    await _over_http(broker, prepared.peek, reads=False)


async def scrape_unread(broker: Standalone, prepared: Prepared) -> None:
    await _over_http(broker, prepared.metrics, reads=False)


OPERATIONS: tuple[Operation, ...] = (
    acknowledge, look_up, list_topics, claim, send_lists, peek_unread, scrape_unread,
)  # fmt: skip


class Publisher:
    """Somebody else, who publishes a small message now and then, from a process of its own."""

    def __init__(self, broker: Standalone) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._here, there = spawn.Pipe()
        self._process = spawn.Process(target=_publish, args=(broker.broker_port, there))
        self.seconds: list[float] = []

    def start(self) -> None:
        self._process.start()
        assert self._here.recv() == "ready"

    def stop(self) -> None:
        self._here.send("stop")
        self.seconds = self._here.recv()
        self._process.join()

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]


def _publish(port: int, told: Connection) -> None:
    client = WireClient(port)
    client.producer(f"{TOPIC}plain")
    told.send("ready")
    seconds = []
    while not told.poll(0.01):
        begun = time.monotonic()
        client.publish(b"x", sequence_id=len(seconds))
        seconds.append(time.monotonic() - begun)
    told.send(seconds)
    client.close()


class Seen(NamedTuple):
    """What everybody else saw."""

    p99_seconds: float
    stall_seconds: float
    grown_mib: float


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) / 1024


def longest_stall(broker: Standalone) -> float:
    with urllib.request.urlopen(f"{broker.web_url}/metrics", timeout=60) as answer:
        found = re.search(r"pulsark_loop_stall_seconds_max\{[^}]*\} (\S+)", answer.read().decode())
    assert found
    return float(found[1])


def attacked(broker: Standalone, clients: int, seconds: float) -> Seen:
    """All operations at once, by so many clients."""
    admin = AdminClient(broker.web_url)
    admin.call("PUT", "/persistent/public/default/listed/partitions", 2000)
    writer = WireClient(broker.broker_port)
    writer.producer(f"{TOPIC}bomb")
    small = zlib.compress(bytes(PAYLOAD_BYTES), 9)
    writer.publish(small, compression=pb.ZLIB, uncompressed_size=PAYLOAD_BYTES)
    writer.close()
    prepared, publisher = Prepared(), Publisher(broker)

    async def attack() -> None:
        operations = [OPERATIONS[number % len(OPERATIONS)] for number in range(clients)]
        tasks = [asyncio.create_task(operation(broker, prepared)) for operation in operations]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    longest_stall(broker)
    before, pid = resident_mib(broker.pid), broker.pid
    publisher.start()
    grown = [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            grown.append(resident_mib(pid) - before)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    asyncio.run(attack())
    publisher.stop()
    over.set()
    watching.join()
    seen = Seen(publisher.p99, longest_stall(broker), max(grown))
    print(seen, len(publisher.seconds))
    assert broker.pid == pid
    assert admin.call("GET", "/clusters")
    return seen


def test_some_clients_with_their_most_expensive_operations(standalone: Standalone) -> None:
    seen = attacked(standalone, 70, 5)
    assert seen.grown_mib < 256, seen
    # A machine that runs other tests beside this one makes everything late.
    assert seen.p99_seconds < 1, seen


@pytest.mark.strangers
def test_a_thousand_clients_with_their_most_expensive_operations(standalone: Standalone) -> None:
    seen = attacked(standalone, 1000, 60)
    assert seen.grown_mib < 256, seen
    assert seen.p99_seconds < 0.1, seen
    assert seen.stall_seconds < 0.25, seen
