"""How long others wait while one client floods the broker: ``python -m benchmarks.fairness``.

For each kind of command a process sends as many as it can and reads the answers, while another
one asks for a PONG every 10 ms. The longest waits decide, so each is measured on a broker of its
own, whose clients are processes of their own. Exits 1 if a goal is missed.

``Flood`` and ``Pings`` are also for the fuzzer.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers import Pulsark
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.frames import FrameDecoder, encode_command, send_frame

P99_SECONDS = 0.050
LONGEST_SECONDS = 0.250
SECONDS = 5.0
PING_EVERY_SECONDS = 0.010
MAX_FRAME_BYTES = 16 << 20
FLOOD_BYTES = 256 << 10
START_SECONDS = 60
TOPIC = "persistent://public/default/flooded"

Command = pb.BaseCommand
SHARED = pb.CommandSubscribe.Shared


class Waits(NamedTuple):
    """How long answers to PING took, in seconds."""

    count: int
    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> Waits:
        """Of the single ones, of which there is at least one."""
        ordered = sorted(seconds)
        at = len(ordered)
        return cls(at, ordered[at // 2], ordered[min(at - 1, at * 99 // 100)], ordered[-1])

    @property
    def fair(self) -> bool:
        return self.p99 < P99_SECONDS and self.longest < LONGEST_SECONDS


class Client:
    """One connection that has shaken hands, and logged in if there is a token."""

    def __init__(self, port: int, *, timeout: float = 60.0, token: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder(MAX_FRAME_BYTES, texts_max=MAX_FRAME_BYTES)
        self._ready: list[pb.BaseCommand] = []
        self.send(connect(token))
        self.take(Command.CONNECTED)

    def send(self, command: pb.BaseCommand) -> None:
        self.socket.sendall(encode_command(command))

    def take(self, kind: int) -> pb.BaseCommand:
        """The next command of this type; pings are answered, all else but errors is dropped."""
        while True:
            while self._ready:
                command = self._ready.pop(0)
                if command.type == kind:
                    return command
                if command.type == Command.PING:
                    self.send(pong())
                elif command.type == Command.ERROR:
                    raise RuntimeError(command.error.message)
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError("the broker closed the connection")
            self._ready += [command for command, _ in self._decoder.receive(data)]


def connect(token: str = "") -> pb.BaseCommand:
    command = Command(type=Command.CONNECT)
    request = command.connect
    request.client_version, request.protocol_version = "fairness", 21
    if token:
        request.auth_method_name, request.auth_data = "token", token.encode()
    return command


def ping() -> pb.BaseCommand:
    command = Command(type=Command.PING)
    command.ping.SetInParent()
    return command


def pong() -> pb.BaseCommand:
    command = Command(type=Command.PONG)
    command.pong.SetInParent()
    return command


# -- what a client can flood with --------------------------------------------------------------


def a_consumer(client: Client) -> None:
    client.send(subscribe(1))
    client.take(Command.SUCCESS)


def a_producer(client: Client) -> None:
    client.send(producer(1))
    client.take(Command.PRODUCER_SUCCESS)


def messages(client: Client) -> None:
    """A backlog to look at, and a consumer of it."""
    a_producer(client)
    frame = sent(100)
    for _ in range(20):
        client.socket.sendall(frame * 500)
        for _ in range(500):
            client.take(Command.SEND_RECEIPT)
    a_consumer(client)


def subscribe(number: int) -> pb.BaseCommand:
    command = Command(type=Command.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = TOPIC, "flood", SHARED
    request.consumer_id = request.request_id = number
    request.initialPosition = pb.CommandSubscribe.Earliest
    return command


def producer(number: int) -> pb.BaseCommand:
    command = Command(type=Command.PRODUCER)
    request = command.producer
    request.topic, request.producer_id, request.request_id = TOPIC, number, number
    return command


def sent(size: int) -> bytes:
    command = Command(type=Command.SEND)
    command.send.producer_id, command.send.sequence_id, command.send.num_messages = 1, 1, 1
    metadata = pb.MessageMetadata(producer_name="flood", sequence_id=1, publish_time=1)
    return send_frame(command, build_entry(metadata, bytes(size)))


def flow(permits: int) -> pb.BaseCommand:
    command = Command(type=Command.FLOW)
    command.flow.consumer_id, command.flow.messagePermits = 1, permits
    return command


def ack(ids: int, *, cumulative: bool = False, answered: bool = True) -> pb.BaseCommand:
    command = Command(type=Command.ACK)
    request = command.ack
    request.consumer_id = 1
    request.ack_type = pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual
    for entry_id in range(ids):
        request.message_id.add(ledgerId=0, entryId=entry_id)
    if answered:
        request.request_id = 7
    return command


def redeliver(ids: int) -> pb.BaseCommand:
    command = Command(type=Command.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    request = command.redeliverUnacknowledgedMessages
    request.consumer_id = 1
    for entry_id in range(ids):
        request.message_ids.add(ledgerId=0, entryId=entry_id)
    return command


def asked(kind: int, field: str, **values: object) -> pb.BaseCommand:
    command = Command(type=kind)  # type: ignore[arg-type]
    request = getattr(command, field)
    request.request_id = 7
    for name, value in values.items():
        setattr(request, name, value)
    return command


def frames(*commands: pb.BaseCommand) -> bytes:
    return b"".join(map(encode_command, commands))


def seek() -> pb.BaseCommand:
    command = asked(Command.SEEK, "seek", consumer_id=1)
    command.seek.message_id.ledgerId = command.seek.message_id.entryId = 2**64 - 1
    return command


def schema() -> pb.BaseCommand:
    command = asked(Command.GET_OR_CREATE_SCHEMA, "getOrCreateSchema", topic=TOPIC)
    wanted = command.getOrCreateSchema.schema
    wanted.name, wanted.schema_data, wanted.type = "s", b'{"type": "string"}', pb.Schema.Avro
    return command


def closing(kind: int, field: str, number_field: str, number: int) -> pb.BaseCommand:
    return asked(kind, field, **{number_field: number})


def nothing(client: Client) -> None:
    """No preparation."""


Prepare = Callable[[Client], None]

FLOODS: dict[str, tuple[Prepare, Callable[[], bytes]]] = {
    "nothing": (nothing, lambda: b""),
    "PING": (nothing, lambda: frames(ping())),
    "PONG": (nothing, lambda: frames(pong())),
    "FLOW": (a_consumer, lambda: frames(flow(1))),
    "FLOW of a backlog, and redelivery": (messages, lambda: frames(flow(2000), redeliver(0))),
    "ACK": (messages, lambda: frames(ack(1))),
    "ACK without answer": (messages, lambda: frames(ack(1, answered=False))),
    "ACK, cumulative": (messages, lambda: frames(ack(1, cumulative=True))),
    "ACK of 10,000 ids": (messages, lambda: frames(ack(10_000))),
    "REDELIVER": (messages, lambda: frames(redeliver(0))),
    "REDELIVER of 10,000 ids": (messages, lambda: frames(redeliver(10_000))),
    "CONSUMER_STATS": (
        a_consumer,
        lambda: frames(asked(Command.CONSUMER_STATS, "consumerStats", consumer_id=1)),
    ),
    "LOOKUP": (nothing, lambda: frames(asked(Command.LOOKUP, "lookupTopic", topic=TOPIC))),
    "PARTITIONED_METADATA": (
        nothing,
        lambda: frames(asked(Command.PARTITIONED_METADATA, "partitionMetadata", topic=TOPIC)),
    ),
    "GET_TOPICS_OF_NAMESPACE": (
        nothing,
        lambda: frames(
            asked(
                Command.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace="public/default"
            )
        ),
    ),
    "WATCH_TOPIC_LIST": (
        nothing,
        lambda: frames(
            asked(
                Command.WATCH_TOPIC_LIST,
                "watchTopicList",
                watcher_id=1,
                namespace="public/default",
                topics_pattern="a.*",
            )
        ),
    ),
    "GET_SCHEMA": (a_producer, lambda: frames(asked(Command.GET_SCHEMA, "getSchema", topic=TOPIC))),
    "GET_OR_CREATE_SCHEMA": (a_producer, lambda: frames(schema())),
    "GET_LAST_MESSAGE_ID": (
        messages,
        lambda: frames(asked(Command.GET_LAST_MESSAGE_ID, "getLastMessageId", consumer_id=1)),
    ),
    "SEEK": (messages, lambda: frames(seek())),
    "SUBSCRIBE, CLOSE_CONSUMER": (
        a_producer,
        lambda: frames(
            *(
                command
                for number in range(2, 200)
                for command in (
                    subscribe(number),
                    closing(Command.CLOSE_CONSUMER, "close_consumer", "consumer_id", number),
                )
            )
        ),
    ),
    "SUBSCRIBE again": (a_consumer, lambda: frames(subscribe(1))),
    "PRODUCER, CLOSE_PRODUCER": (
        nothing,
        lambda: frames(
            *(
                command
                for number in range(2, 200)
                for command in (
                    producer(number),
                    closing(Command.CLOSE_PRODUCER, "close_producer", "producer_id", number),
                )
            )
        ),
    ),
    "UNSUBSCRIBE": (
        nothing,
        lambda: frames(
            subscribe(1), asked(Command.UNSUBSCRIBE, "unsubscribe", consumer_id=1, force=True)
        ),
    ),
    "NEW_TXN": (nothing, lambda: frames(asked(Command.NEW_TXN, "newTxn"))),
    "SEND of 10 B": (a_producer, lambda: sent(10)),
    "SEND of 1 KiB": (a_producer, lambda: sent(1024)),
    "SEND of 1 MiB": (a_producer, lambda: sent(1 << 20)),
}


class Flood:
    """Sends as much as the broker takes, and reads all answers."""

    def __init__(self, port: int, kind: str) -> None:
        prepare, piece = FLOODS[kind]
        self._client = Client(port)
        prepare(self._client)
        self._bytes = piece()
        self.sent_bytes = 0

    def run(self, seconds: float) -> None:
        """Flood for some time; ends early if the broker closes the connection."""
        end = time.monotonic() + seconds
        if not self._bytes:
            time.sleep(seconds)
            return
        piece = self._bytes * max(1, FLOOD_BYTES // len(self._bytes))
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        with suppress(OSError):
            while time.monotonic() < end:
                self._client.socket.settimeout(max(0.1, end - time.monotonic()))
                self._client.socket.sendall(piece)
                self.sent_bytes += len(piece)
        with suppress(OSError):
            self._client.socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self._client.socket.close()

    def _read(self) -> None:
        with suppress(OSError):
            while self._client.socket.recv(1 << 20):
                pass


class Pings:
    """An innocent client that asks for signs of life."""

    def __init__(self, port: int, token: str = "") -> None:
        self._client = Client(port, token=token)

    def run(self, seconds: float) -> Waits:
        """Ask for some time, and at least once."""
        return Waits.of(self.waits(seconds))

    def waits(self, seconds: float) -> list[float]:
        """The same, with each single wait."""
        end = time.monotonic() + seconds
        waits: list[float] = []
        while True:
            started = time.monotonic()
            self._ask()
            waits.append(time.monotonic() - started)
            if started >= end:
                return waits
            time.sleep(PING_EVERY_SECONDS)

    def _ask(self) -> None:
        self._client.send(ping())
        self._client.take(Command.PONG)


# -- the table ------------------------------------------------------------------------------------


@contextmanager
def beside(work: Callable[..., None], *arguments: object) -> Iterator[int]:
    """A process that works while the context is open, once it has set the last argument: its id."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=work, args=(*arguments, ready))
    process.start()
    try:
        if not ready.wait(START_SECONDS):
            raise RuntimeError(f"{work.__name__}{arguments} did not begin")
        yield process.pid or 0
    finally:
        process.kill()  # it may be stopped
        process.join()


def flooding(port: int, kind: str, seconds: float, ready) -> None:  # type: ignore[no-untyped-def]
    flood = Flood(port, kind)
    ready.set()
    flood.run(seconds)


def measure(port: int, kind: str, seconds: float) -> Waits:
    """How long others wait while a client floods with one kind of command."""
    pings = Pings(port)
    with beside(flooding, port, kind, seconds + START_SECONDS):
        return pings.run(seconds)


def started(broker: Pulsark, token: str = "") -> None:
    """Start a broker and wait until it answers."""
    broker.start()
    end = time.monotonic() + START_SECONDS
    while True:
        broker.check()
        with suppress(OSError, EOFError):
            Client(broker.port, token=token)
            return
        if time.monotonic() > end:
            raise RuntimeError("the broker does not answer")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*FLOODS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    unfair = 0
    print(f"{'flood of':<36}{'pings':>7}{'p50':>10}{'p99':>10}{'longest':>10}   (ms)")
    for kind in options.kinds or FLOODS:
        with tempfile.TemporaryDirectory() as home:
            broker = Pulsark(Path(home) / "broker")
            started(broker)
            try:
                waits = measure(broker.port, kind, options.seconds)
                broker.check()
            finally:
                broker.stop()
        unfair += not waits.fair
        numbers = "".join(f"{1e3 * value:>10.1f}" for value in waits[1:])
        print(f"{kind:<36}{waits.count:>7}{numbers}{'' if waits.fair else '   missed'}", flush=True)
    print(f"goals: p99 below {1e3 * P99_SECONDS:.0f} ms, longest below {1e3 * LONGEST_SECONDS:.0f}")
    sys.exit(unfair > 0)


if __name__ == "__main__":
    main()
