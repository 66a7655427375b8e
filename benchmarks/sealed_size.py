"""Bytes on disk: the flights, sealed by Pulsark, beside the same messages in Apache Pulsar.

    python -m benchmarks.sealed_size [--times 30] [--check]

All columns of the 336,776 flights as JSON, as the official Python client encodes records, with the
carrier as key and the scheduled hour as event time; so many times over, shuffled with a fixed
seed: 10 million messages by default. The same client sends the same messages in the same order to
each broker, in its default batches. Counted are the blocks that the file system gave: of Pulsark
the topic's table when all messages are sealed, of Pulsar all but its journal after it was shut
down. ``--check`` ends with status 1 above 0.25 of Pulsar, or 0.6 of Pulsar with zstd in the client.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.brokers import Broker, Pulsar, Pulsark
from benchmarks.goals import Goal, add_check, exit_code
from examples.flights.flights import read_flights

UNCOMPRESSED_MAX, COMPRESSED_MAX = 0.25, 0.6
SEED = 20130101
START_SECONDS = 120.0
SEAL_SECONDS = 900.0
TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")
TOPIC = "flights"


def _progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


class Flights:
    """The messages: payload, key and event time (ms since the epoch) of each flight once."""

    def __init__(self, limit: int | None = None) -> None:
        import pandas as pd

        rows = read_flights().head(limit) if limit else read_flights()
        hours = pd.to_datetime(rows["time_hour"], utc=True)
        epoch = pd.Timestamp(0, tz="UTC")
        self.event_times = ((hours - epoch) // pd.Timedelta(milliseconds=1)).tolist()
        self.keys = rows["carrier"].tolist()
        self.columns = list(rows.columns)
        values = zip(*(map(_plain, rows[name].tolist()) for name in self.columns), strict=True)
        self.payloads = [
            json.dumps(dict(zip(self.columns, row, strict=True)), indent=True).encode()
            for row in values
        ]

    def shuffled(self, times: int) -> Iterator[int]:
        """Numbers of flights, each so many times, in an order that is always the same."""
        import numpy as np

        order = np.repeat(np.arange(len(self.payloads), dtype=np.int32), times)
        np.random.default_rng(SEED).shuffle(order)
        yield from order.tolist()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if value != value else int(value)
    return value


def _schema(columns: Sequence[str]) -> Any:
    """A schema of the official client that takes values which are encoded already."""
    from pulsar.schema import Integer, JsonSchema, Record, String

    fields = {name: String() if name in TEXTS else Integer() for name in columns}

    class Encoded(JsonSchema):  # type: ignore[misc]
        def encode(self, obj: bytes) -> bytes:
            return obj

    return Encoded(type("Flight", (Record,), fields))


def publish(broker: Broker, flights: Flights, times: int, compressed: bool) -> None:
    """Send all, and wait for the receipts."""
    import pulsar

    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    deadline = time.monotonic() + START_SECONDS
    while True:
        client = pulsar.Client(broker.url, logger=logger, operation_timeout_seconds=10)
        try:
            producer = client.create_producer(
                TOPIC,
                schema=_schema(flights.columns),
                compression_type=(
                    pulsar.CompressionType.ZSTD if compressed else pulsar.CompressionType.NONE
                ),
                batching_enabled=True,
                block_if_queue_full=True,
                max_pending_messages=20_000,
            )
            break
        except pulsar.PulsarException:
            client.close()
            broker.check()
            if time.monotonic() > deadline:
                raise
            time.sleep(3)
    failed: list[Any] = []

    def done(result: Any, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    send, payloads, keys, moments = (
        producer.send_async, flights.payloads, flights.keys, flights.event_times,
    )  # fmt: skip
    for i in flights.shuffled(times):
        send(payloads[i], done, partition_key=keys[i], event_timestamp=moments[i])
    producer.flush()
    client.close()
    if failed:
        raise RuntimeError(f"{broker.name}: {len(failed)} messages failed: {failed[0]}")


def bytes_on_disk(directory: Path) -> int:
    """Blocks of all files, but of the segments of Pulsar's journal."""
    return sum(
        path.stat().st_blocks * 512
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".txn"
    )


def sealed_bytes(home: Path, messages: int) -> int:
    """Bytes of the table, once it has all the messages."""
    from deltalake import DeltaTable

    deadline = time.monotonic() + SEAL_SECONDS
    while True:
        logs = list(home.glob("data/bookies/*/ledgers/table/*/*/*/_delta_log"))
        if logs and (logs[0] / f"{1:020d}.json").exists():
            table = DeltaTable(str(logs[0].parent))
            rows = sum(table.get_add_actions(flatten=True).column("num_records").to_pylist())
            if rows == messages:
                return bytes_on_disk(logs[0].parent)
            _progress(f"{rows:,} of {messages:,} messages are sealed")
        if time.monotonic() > deadline:
            raise RuntimeError("Pulsark has not sealed all messages")
        time.sleep(5)


def measure(broker: Broker, flights: Flights, times: int, compressed: bool) -> int:
    """Bytes that a broker needs for all the messages."""
    broker.prepare()
    broker.start()
    try:
        started = time.monotonic()
        publish(broker, flights, times, compressed)
        _progress(f"{broker.name}: published in {time.monotonic() - started:.0f} s")
        if isinstance(broker, Pulsark):
            return sealed_bytes(broker.home, len(flights.payloads) * times)
        broker.end()
        return bytes_on_disk(broker.home / "bookkeeper")
    finally:
        broker.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and compare; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed_size", description=__doc__)
    parser.add_argument("--times", type=int, default=30, help="how often each flight is sent")
    parser.add_argument("--flights", type=int, help="only the first so many flights")
    add_check(parser)
    parser.add_argument("--data-dir", type=Path, help="where the brokers write (a temporary one)")
    parsed = parser.parse_args(arguments)
    flights = Flights(parsed.flights)
    messages = len(flights.payloads) * parsed.times
    payload = sum(map(len, flights.payloads)) * parsed.times
    with tempfile.TemporaryDirectory(prefix="pulsark-size-", dir=parsed.data_dir) as directory:
        home = Path(directory)
        sealed = measure(Pulsark(home / "pulsark"), flights, parsed.times, False)
        plain = measure(Pulsar(home / "pulsar"), flights, parsed.times, False)
        squeezed = measure(Pulsar(home / "pulsar"), flights, parsed.times, True)
    print(f"{messages:,} flights as JSON, {payload / 1e6:,.1f} MB of payloads\n")
    for name, size in (
        ("Pulsark, sealed", sealed), ("Pulsar", plain), ("Pulsar, zstd in the client", squeezed),
    ):  # fmt: skip
        print(f"{name:28} {size / 1e6:>10,.1f} MB {size / messages:>8.1f} bytes a message")
    goals = [
        Goal("sealed / Pulsar", sealed / plain, "at most", UNCOMPRESSED_MAX),
        Goal("sealed / Pulsar, zstd", sealed / squeezed, "at most", COMPRESSED_MAX),
    ]
    return exit_code(goals, parsed.check)


if __name__ == "__main__":
    sys.exit(main())
