"""How fast messages become rows, and rows entries: messages a second on one core.

    python benchmarks/rows.py [--messages N] [--batch N] [--check]

100-byte messages with a key and two properties, in batches of 1000, as a client sends them; and
the same sent alone. ``--check`` ends with status 1 below the goals: 500,000 into rows and
250,000 out of rows.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

from pulsark.storage.rows import RowBuilder, entries_of
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.entry import build_entry

ROWS_GOAL, ENTRIES_GOAL = 500_000, 250_000
ROUNDS = 5
NOW = 1_700_000_000_000


def _fill(message: Any, i: int) -> Any:
    message.partition_key = f"key-{i % 1000}"
    message.properties.add(key="origin", value="JFK")
    message.properties.add(key="trace", value=f"{i:012x}")
    return message


def _metadata(i: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="bench-1", sequence_id=i, publish_time=NOW + i)


def batches(messages: int, size: int) -> list[bytes]:
    """Entries of ``size`` messages each."""
    value = bytes(range(100))
    return [
        build_batch(
            _metadata(start),
            [
                (_fill(pb.SingleMessageMetadata(payload_size=0, sequence_id=i), i), value)
                for i in range(start, start + size)
            ],
        )
        for start in range(0, messages, size)
    ]


def alone(messages: int) -> list[bytes]:
    """Entries of one message each."""
    return [build_entry(_fill(_metadata(i), i), bytes(range(100))) for i in range(messages)]


def best(run: Callable[[], Any]) -> float:
    """Seconds of the fastest of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(entries: list[bytes], messages: int) -> tuple[float, float]:
    """Messages a second into rows and out of them."""

    def rows() -> Any:
        builder = RowBuilder.for_table(0)
        for entry_id, entry in enumerate(entries):
            builder.add(1, entry_id, entry)
        return builder.finish()

    table = rows()
    assert table.num_rows == messages
    return messages / best(rows), messages / best(lambda: entries_of(table))


def main() -> int:
    arguments = argparse.ArgumentParser(description="How fast messages become rows and entries")
    arguments.add_argument("--messages", type=int, default=20_000)
    arguments.add_argument("--batch", type=int, default=1000)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    into, out = measure(batches(options.messages, options.batch), options.messages)
    print(f"batches of {options.batch}: {into:,.0f} messages/s into rows, {out:,.0f} out of rows")
    lone = measure(alone(options.messages), options.messages)
    print(f"sent alone: {lone[0]:,.0f} messages/s into rows, {lone[1]:,.0f} out of rows")
    return int(options.check and (into < ROWS_GOAL or out < ENTRIES_GOAL))


if __name__ == "__main__":
    sys.exit(main())
