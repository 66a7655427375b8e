"""How long clients wait when their broker dies: ``python -m benchmarks.takeover [--check]``.

One of two brokers has all bundles of a namespace, and so all topics, each with a producer and a
consumer. It is killed. Measured is when each topic has answered a message sent after that, and has
delivered it. ``official`` has the official Python client, which waits between two attempts;
``many`` a client of its own that does not, with so many topics that the order matters: it asks for
the topics in its order, and those that it asks for first should be there first.

With ``--cluster`` they are brokers of a cluster, with ZooKeeper and three bookies. The killed one
is started again, as by systemd, and takes its own bundles back before its session is over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from benchmarks.fairness import Command, connect, pong, started
from benchmarks.goals import Goal, add_check, add_scenarios, exit_code
from benchmarks.maven import CACHE
from benchmarks.scaling import Standalone
from benchmarks.usage import processor_seconds
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.frames import FrameDecoder, encode_command, send_frame

NAMESPACE = "public/default"
FRAME_BYTES_MAX = 6 << 20
MOVED = "public/moved"
FIRST_PART, FIRST_SHARE = 0.1, 0.3
"""The first tenth of the topics that are asked for is there within so much of the time of all."""
LINKS = 8
"""Connections of the client with many topics; it asks for so many topics at once on each."""
AT_ONCE = 50
RETRY_SECONDS = 0.02
RETRY_SECONDS_OF_CLUSTER = 0.5
"""While a broker starts again it needs the processors more than clients that ask where it is."""
PATIENCE = 600.0
PAUSE_SECONDS = 0.05
"""Between two messages of a topic."""
UNDER_WAY_SECONDS = 0.02
"""What a killed process had sent has come."""


def name_of(number: int) -> str:
    """Of a topic."""
    return f"persistent://{NAMESPACE}/t{number}"


class Two(Standalone):
    """Two brokers; bundles are only moved by hand."""

    COMMAND = "standalone"
    RETRY_SECONDS = RETRY_SECONDS

    def __init__(self, home: Path) -> None:
        super().__init__(home, 2)

    @property
    def _ready(self) -> Path:
        return self.home / "data" / f"{self.COMMAND}.json"

    def _flags(self) -> list[str]:
        return [*super()._flags(), "--set=loadBalancerEnabled=false"]

    def served(self) -> list[dict[str, Any]]:
        """What is known of each."""
        found: list[dict[str, Any]] = json.loads(self._ready.read_text())["brokers"]
        return found

    def wait_until_ready(self) -> None:
        """Its ports answer before it can tell of its brokers."""
        deadline = time.monotonic() + PATIENCE
        while not self._ready.exists():
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError("the brokers do not start")
            time.sleep(0.05)

    def make(self, namespace: str) -> None:
        """A namespace of one bundle."""
        self._call(f"admin/v2/namespaces/{namespace}", "PUT", {"bundles": {"numBundles": 1}})

    def give(self, place: int, namespace: str = NAMESPACE) -> None:
        """One broker gets all bundles."""
        broker = urlsplit(self.served()[place]["webServiceUrl"]).netloc
        edges = self._call(f"admin/v2/namespaces/{namespace}")["bundles"]["boundaries"]
        for low, high in pairwise(edges):
            path = f"admin/v2/namespaces/{namespace}/{low}_{high}/unload"
            self._call(f"{path}?destinationBroker={broker}", "PUT")

    def _call(self, path: str, method: str = "GET", body: object = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = Request(f"{self.admin_url}/{path}", content, headers, method=method)
        with urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")


class TwoOfCluster(Two):
    """Over a ZooKeeper and three bookies; each broker has its own ports, and no other ones."""

    COMMAND = "cluster"
    RETRY_SECONDS = RETRY_SECONDS_OF_CLUSTER

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("standalone")] = self.COMMAND
        return [*command, "--bookies=3", f"--jars={CACHE}"]

    @property
    def url(self) -> str:
        return ",".join(broker["brokerServiceUrl"] for broker in self.served()).replace(
            ",pulsar://", ","
        )

    def end(self) -> None:
        """The servers take their time, and would outlive a process that is killed."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE)
        super().end()


# -- a client without patience -----------------------------------------------------------------


class Link(asyncio.Protocol):
    """A connection of the client."""

    def __init__(self, client: Many) -> None:
        self._client = client
        self._decoder = FrameDecoder(FRAME_BYTES_MAX, texts_max=FRAME_BYTES_MAX)
        self._asked: dict[int, asyncio.Future[pb.BaseCommand]] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.send(connect())

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for future in [self.ready, *self._asked.values()]:
            if not future.done():
                future.set_exception(ConnectionError())
                future.exception()
        self._asked.clear()

    def data_received(self, data: bytes) -> None:
        for command, _ in self._decoder.receive(data):
            kind = command.type
            if kind == Command.CONNECTED:
                self.ready.set_result(None)
            elif kind == Command.PING:
                self.send(pong())
            elif kind == Command.SEND_RECEIPT:
                self._client.answered(command.send_receipt.producer_id)
            elif kind == Command.MESSAGE:
                self._client.delivered(command.message.consumer_id)
            elif kind in _ANSWERS:
                future = self._asked.pop(getattr(command, _ANSWERS[kind]).request_id, None)
                if future is not None and not future.done():
                    future.set_result(command)

    def send(self, command: pb.BaseCommand) -> None:
        self.write(encode_command(command))

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def ask(self, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        """The answer. Raises ``ConnectionError``."""
        if self.is_lost:
            raise ConnectionError
        future = self._asked[request_id] = asyncio.get_running_loop().create_future()
        self.send(command)
        return await future


_ANSWERS = {
    Command.LOOKUP_RESPONSE: "lookupTopicResponse",
    Command.PRODUCER_SUCCESS: "producer_success",
    Command.SUCCESS: "success",
    Command.ERROR: "error",
}


class Many:
    """Producers and consumers of very many topics, which come back as fast as they can."""

    def __init__(self, addresses: Callable[[], list[str]], topics: int, pause: float) -> None:
        """``addresses``: of the own ports of the brokers that live."""
        self._addresses = addresses
        self._pause = pause
        self._ids = count(1)
        self._links: dict[tuple[str, int], asyncio.Task[Link]] = {}
        self._receipts: dict[int, asyncio.Future[float]] = {}
        self._deliveries: dict[int, asyncio.Future[float]] = {}
        self._sent = 0
        self.topics = topics
        self.refusals: Counter[str] = Counter()
        """How often each error was the answer."""

    async def all_there(self) -> tuple[list[float], list[float]]:
        """When each topic has answered a message, and when it has delivered it."""
        loop = asyncio.get_running_loop()
        self._sent += 1
        self._receipts = {n: loop.create_future() for n in range(self.topics)}
        self._deliveries = {n: loop.create_future() for n in range(self.topics)}
        waiting = iter(range(self.topics))

        async def some(number: int) -> None:
            for topic in waiting:
                await self._until_there(topic, number % LINKS)

        await asyncio.gather(*[some(number) for number in range(LINKS * AT_ONCE)])
        return (
            list(await asyncio.gather(*self._receipts.values())),
            list(await asyncio.gather(*self._deliveries.values())),
        )

    async def _until_there(self, topic: int, link: int) -> None:
        while not self._receipts[topic].done():
            try:
                await self._try(topic, link)
            except (OSError, RuntimeError):
                await asyncio.sleep(self._pause)

    async def _try(self, topic: int, number: int) -> None:
        link = await self._link(self._addresses()[0], number)
        link = await self._link(await self._owner(link, topic), number)
        command = Command(type=Command.SUBSCRIBE)
        wanted = command.subscribe
        wanted.topic, wanted.subscription, wanted.subType = name_of(topic), "s", wanted.Exclusive
        wanted.consumer_id, wanted.request_id = topic, next(self._ids)
        subscribing = asyncio.create_task(self._ask(link, command, wanted.request_id))
        command = Command(type=Command.PRODUCER)
        opened = command.producer
        opened.topic, opened.producer_id, opened.request_id = name_of(topic), topic, next(self._ids)
        try:
            await self._ask(link, command, opened.request_id)
        finally:
            await subscribing
        command = Command(type=Command.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = topic, 1000
        link.send(command)
        head = pb.MessageMetadata(producer_name="p", sequence_id=self._sent, publish_time=1)
        command = Command(type=Command.SEND)
        command.send.producer_id, command.send.sequence_id = topic, self._sent
        link.write(send_frame(command, build_entry(head, b"payload")))
        done, _ = await asyncio.wait([self._receipts[topic]], timeout=10.0)
        if not done:
            raise ConnectionError("there is no receipt")

    async def _owner(self, link: Link, topic: int) -> str:
        authoritative = False
        for _ in range(10):
            command = Command(type=Command.LOOKUP)
            wanted = command.lookupTopic
            wanted.topic, wanted.request_id = name_of(topic), next(self._ids)
            wanted.authoritative = authoritative
            answer = (await self._ask(link, command, wanted.request_id)).lookupTopicResponse
            if answer.response == answer.Failed:
                raise RuntimeError(answer.message)
            address = urlsplit(answer.brokerServiceUrl).netloc
            if answer.response == answer.Connect:
                return address
            authoritative = answer.authoritative
            link = await self._link(address, 0)
        raise RuntimeError("the lookup goes round in circles")

    async def _ask(self, link: Link, command: pb.BaseCommand, request_id: int) -> pb.BaseCommand:
        answer = await link.ask(command, request_id)
        if answer.type == Command.ERROR:
            self.refusals[pb.ServerError.Name(answer.error.error)] += 1
            raise RuntimeError(answer.error.message)
        return answer

    async def _link(self, address: str, number: int) -> Link:
        """A connection to a broker's own port; all who need it wait for the same attempt."""
        task = self._links.get((address, number))
        if task is None or (task.done() and (task.exception() or task.result().is_lost)):
            task = asyncio.create_task(self._connect(address))
            self._links[address, number] = task
        return await asyncio.shield(task)

    async def _connect(self, address: str) -> Link:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: Link(self), host, int(port))
        await link.ready
        return link

    def answered(self, topic: int) -> None:
        """There is a receipt."""
        if not self._receipts[topic].done():
            self._receipts[topic].set_result(time.monotonic())

    def delivered(self, topic: int) -> None:
        """There is a message; none is acknowledged, so it may be an old one."""
        if self._receipts[topic].done() and not self._deliveries[topic].done():
            self._deliveries[topic].set_result(time.monotonic())
        elif not self._deliveries[topic].done():
            asyncio.get_running_loop().call_later(0.01, self.delivered, topic)


def many(standalone: Two, topics: int) -> list[Goal]:
    """Kill the broker of very many topics."""
    standalone.give(0)
    killed: list[int] = []

    def addresses() -> list[str]:
        return [
            urlsplit(broker["brokerServiceUrl"]).netloc
            for number, broker in enumerate(standalone.served())
            if number not in killed
        ]

    async def run() -> tuple[float, list[float], list[float], dict[str, int], float]:
        client = Many(addresses, topics, standalone.RETRY_SECONDS)
        await client.all_there()
        pid = int(standalone.served()[0]["pid"])
        killed.append(0)
        client.refusals.clear()
        other = int(standalone.served()[1]["pid"])
        used, begun = processor_seconds(other), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        receipts, deliveries = await client.all_there()
        # Also what the one used that was started again.
        used = sum(processor_seconds(int(each["pid"])) for each in standalone.served()) - used
        return begun, receipts, deliveries, dict(client.refusals), used

    begun, receipts, deliveries, errors, used = asyncio.run(run())
    waits = [at - begun for at in receipts]
    print(
        f"many: {topics} topics{_shown(waits)}; delivered{_shown([a - begun for a in deliveries])}"
    )
    print(f"many: {used:.1f} s of the brokers' processor time; {errors or 'no errors'}")
    early = max(waits[: int(topics * FIRST_PART)])
    return [
        Goal(
            f"{topics} topics are there, s",
            max(a - begun for a in deliveries),
            "at most",
            60.0 if isinstance(standalone, TwoOfCluster) else 30.0,
        ),
        Goal("the first tenth of them, part of that", early / max(waits), "at most", FIRST_SHARE),
    ]


# -- the official client -----------------------------------------------------------------------


class Official:
    """The official client publishes to all topics all the time, and consumes them."""

    def __init__(self, url: str, topics: int, namespace: str) -> None:
        import pulsar

        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._client = pulsar.Client(url, logger=logger, io_threads=2)
        self._ok = pulsar.Result.Ok
        self._ending = threading.Event()
        self._sent = [dict[bytes, float]() for _ in range(topics)]
        self.receipts = [list[float]() for _ in range(topics)]
        """When they came, by topic."""
        self.deliveries = [list[tuple[float, float]]() for _ in range(topics)]
        """When messages were sent, and came."""
        names = [f"persistent://{namespace}/t{number}" for number in range(topics)]
        self._producers = [
            self._client.create_producer(name, send_timeout_millis=0) for name in names
        ]
        for number, name in enumerate(names):
            self._client.subscribe(name, "s", message_listener=partial(self._take, number))
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._client.close()

    def wait_until_all(self, since: float) -> tuple[list[float], list[float]]:
        """For each topic the time to a receipt, and to the delivery of what was sent since."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            receipts = [_first(times, since) for times in self.receipts]
            delivered = [
                next((at for sent, at in times if sent >= since), 0.0) for times in self.deliveries
            ]
            if all(receipts) and all(delivered):
                return [at - since for at in receipts], [at - since for at in delivered]
            time.sleep(0.05)
        raise TimeoutError("some topics do not come back")

    def silences(self, since: float) -> list[float]:
        """For each topic the longest time without a receipt."""
        found = []
        for times in self.receipts:
            later = [since, *(at for at in times if at >= since)]
            found.append(max(b - a for a, b in pairwise(later)))
        return found

    def _publish(self) -> None:
        for turn in count():
            payload = b"%d" % turn
            for number, producer in enumerate(self._producers):
                self._sent[number][payload] = time.monotonic()
                producer.send_async(payload, partial(self._answered, number))
            if self._ending.wait(PAUSE_SECONDS):
                return

    def _answered(self, topic: int, result: Any, _: object) -> None:
        if result == self._ok:
            self.receipts[topic].append(time.monotonic())

    def _take(self, topic: int, consumer: Any, message: Any) -> None:
        sent = self._sent[topic].pop(message.data(), 0.0)
        if sent:
            self.deliveries[topic].append((sent, time.monotonic()))
        consumer.acknowledge(message)


def _first(times: Sequence[float], since: float) -> float:
    return next((at for at in times if at >= since), 0.0)


def official(standalone: Two, topics: int) -> list[Goal]:
    """Kill the broker of some topics of the official client."""
    standalone.give(0)
    with closing(Official(standalone.url, topics, NAMESPACE)) as load:
        load.wait_until_all(time.monotonic())
        pid, other = (int(broker["pid"]) for broker in standalone.served())
        used = processor_seconds(other)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic() + UNDER_WAY_SECONDS
        receipts, deliveries = load.wait_until_all(killed)
        used = processor_seconds(other) - used
    print(f"official: {topics} topics{_shown(receipts)}; delivered{_shown(deliveries)}")
    print(f"official: {used:.2f} s of the other broker's processor time")
    longest = max(*receipts, *deliveries) + UNDER_WAY_SECONDS
    bound = 5.0 if isinstance(standalone, TwoOfCluster) else 1.0
    return [Goal(f"{topics} topics of the official client, s", longest, "at most", bound)]


def move(standalone: Two, topics: int) -> list[Goal]:
    """Move the bundle of some busy topics to the other broker and back."""
    standalone.make(MOVED)
    standalone.give(0, MOVED)
    with closing(Official(standalone.url, topics, MOVED)) as load:
        load.wait_until_all(time.monotonic())
        longest = 0.0
        for place in (1, 0):
            pids = [int(broker["pid"]) for broker in standalone.served()]
            used, since = [processor_seconds(pid) for pid in pids], time.monotonic()
            standalone.give(place, MOVED)
            load.wait_until_all(time.monotonic())
            used = [processor_seconds(p) - u for p, u in zip(pids, used, strict=True)]
            silences = load.silences(since)
            longest = max(longest, *silences)
            print(f"move: {topics} topics{_shown(silences)}; processor time {used} s")
    return [Goal(f"a move of {topics} busy topics, s", longest, "at most", 1.0)]


def _shown(waits: Sequence[float]) -> str:
    waits = sorted(waits)
    return f" after {waits[0]:.2f} to {waits[-1]:.2f} s, half {statistics.median(waits):.2f} s"


SCENARIOS = {"official": (official, 100), "many": (many, 10_000), "move": (move, 300)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    add_scenarios(parser, SCENARIOS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--topics", type=int, help="other numbers than those of the goals")
    parser.add_argument("--cluster", action="store_true", help="with ZooKeeper and bookies")
    add_check(parser)
    chosen = parser.parse_args(arguments)
    goals = []
    with tempfile.TemporaryDirectory(prefix="pulsark-takeover-") as home:
        for name in chosen.scenarios:
            measure, topics = SCENARIOS[name]
            for _ in range(chosen.rounds):
                standalone = (TwoOfCluster if chosen.cluster else Two)(Path(home) / name)
                try:
                    started(standalone)
                    standalone.wait_until_ready()
                    goals += measure(standalone, chosen.topics or topics)
                finally:
                    standalone.stop()
    return exit_code(goals, chosen.check)


if __name__ == "__main__":
    sys.exit(main())
