"""The least that a broker's kernel takes to receive entries and to send three copies of them.

    python -m benchmarks.three_copies [--size BYTES] [--entries N] [--rounds N]

A relay without a protocol: it receives entries from one connection and sends each over three
others, on loopback. ``written`` copies each into the three sockets, as a broker does; ``spliced``
receives into a memory file and hands its pages to the sockets (``sendfile``), which a broker
could do if it never touched an entry before all three bookies had it. Processor time of the relay
and of one receiver, in us for 1 KiB: it bounds what any broker can win (docs/benchmarks.md).
"""

from __future__ import annotations

import argparse
import mmap
import os
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing import Process, SimpleQueue

COPIES = 3
READ_BYTES = 64 << 10
"""Of one read of a receiver: the most that Netty reads at once by default."""
RING_ENTRIES = 64


def send_entries(address: tuple[str, int], size: int, entries: int) -> None:
    """The client."""
    entry = bytes(size)
    with socket.create_connection(address) as connection:
        for _ in range(entries):
            connection.sendall(entry)


def receive(listener: socket.socket, answers: SimpleQueue[tuple[int, float]]) -> None:
    """A bookie, which only reads. It answers with the bytes and with its processor time."""
    connection, _ = listener.accept()
    buffer = bytearray(READ_BYTES)
    received = 0
    began = time.process_time()
    while count := connection.recv_into(buffer):
        received += count
    answers.put((received, time.process_time() - began))


def write(client: socket.socket, bookies: list[socket.socket], size: int, entries: int) -> None:
    """Relay entries by copying each into all sockets."""
    entry = memoryview(bytearray(size))
    for _ in range(entries):
        _fill(client, entry)
        for bookie in bookies:
            bookie.sendall(entry)


def splice(client: socket.socket, bookies: list[socket.socket], size: int, entries: int) -> None:
    """Relay entries by giving their pages to all sockets."""
    place = -size % mmap.PAGESIZE + size
    file = os.memfd_create("entries")
    os.ftruncate(file, place * RING_ENTRIES)
    ring = memoryview(mmap.mmap(file, place * RING_ENTRIES))
    for number in range(entries):
        start = number % RING_ENTRIES * place
        _fill(client, ring[start : start + size])
        for bookie in bookies:
            sent = 0
            while sent < size:
                sent += os.sendfile(bookie.fileno(), file, start + sent, size - sent)


WAYS: dict[str, Callable[[socket.socket, list[socket.socket], int, int], None]] = {
    "written": write,
    "spliced": splice,
}


def _fill(client: socket.socket, entry: memoryview) -> None:
    filled = 0
    while filled < len(entry):
        received = client.recv_into(entry[filled:])
        if not received:
            raise ConnectionError("the client ended early")
        filled += received


def measure(way: str, size: int, entries: int) -> tuple[float, float]:
    """Microseconds of the relay, and of one receiver, for 1 KiB."""
    answers: SimpleQueue[tuple[int, float]] = SimpleQueue()
    others, bookies = [], []
    for _ in range(COPIES):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            receiver = Process(target=receive, args=(listener, answers))
            receiver.start()
            bookies.append(socket.create_connection(listener.getsockname()))
        others.append(receiver)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = Process(target=send_entries, args=(listener.getsockname(), size, entries))
        sender.start()
        client, _ = listener.accept()
    others.append(sender)
    began = time.process_time()
    WAYS[way](client, bookies, size, entries)
    relay = time.process_time() - began
    for connection in (client, *bookies):
        connection.close()
    found = [answers.get() for _ in range(COPIES)]
    for process in others:
        process.join()
    if any(received != size * entries for received, _ in found):
        raise ValueError(f"{size * entries} bytes were sent; received: {found}")
    kibibytes = size * entries / 1024
    receiver = statistics.mean(seconds for _, seconds in found)
    return 1e6 * relay / kibibytes, 1e6 * receiver / kibibytes


def main() -> int:
    """Both ways in alternation; medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=128 << 10, help="of an entry, in bytes")
    parser.add_argument("--entries", type=int, default=16_000, help="of one run")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(1, options.rounds + 1):
        print(f"round {number} of {options.rounds}", flush=True)
        for way in WAYS:
            found[way].append(measure(way, options.size, options.entries))
    print(f"\n{'us for 1 KiB, medians':<24}{'relay':>8}{'one receiver':>14}")
    for way, runs in found.items():
        relay, receiver = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{way:<24}{relay:>8.2f}{receiver:>14.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
