"""An entry is found by its publish time, although publish times are what clients say."""

from __future__ import annotations

import asyncio
import random

import pytest

from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.storage.managed_ledger.time_search import WINDOW_ENTRIES, find_by_publish_time
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.position import Position

PER_LEDGER = 300
DAY = 86_400_000
START = 1_700_000_000_000


def search(times: list[int | None], ms: int, *, at_once: int = 10_000) -> tuple[int, int]:
    """The rank that is found of entries with these publish times, and the entries that are read.

    ``None`` stands for an entry that is no message.
    """
    sizes = [min(PER_LEDGER, len(times) - start) for start in range(0, len(times), PER_LEDGER)]
    ledgers = LedgerList([LedgerInfo(7 + i, size, 1, 0) for i, size in enumerate(sizes)])
    reads = 0

    def entry(time: int | None) -> bytes:
        if time is None:
            return b"junk"
        return build_entry(
            pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=time), b""
        )

    async def read(
        position: Position, max_entries: int, max_bytes: int
    ) -> list[tuple[Position, bytes]]:
        nonlocal reads
        rank = ledgers.rank(position)
        found = times[rank : rank + min(max_entries, at_once)]
        reads += len(found)
        return [(ledgers.at(rank + i), entry(time)) for i, time in enumerate(found)]

    found = asyncio.run(find_by_publish_time(ledgers, read, ms))
    return ledgers.rank(found), reads


@pytest.mark.parametrize("at_once", [1, 10_000])
@pytest.mark.parametrize("wanted", [0, 1, 299, 300, 1234, 1999, 2000])
def test_of_times_in_order_the_first_is_found(wanted: int, at_once: int) -> None:
    times = [START + n * 10 for n in range(2000)]
    assert search(times, START + wanted * 10 - 3, at_once=at_once)[0] == wanted
    rank, reads = search([START] * 2000, START + 1)
    assert rank == 2000
    assert reads <= 12 * WINDOW_ENTRIES


def test_in_a_topic_without_entries_it_is_the_place_of_the_next_one() -> None:
    assert search([], START)[0] == 0


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_clients_whose_clocks_are_behind_hide_nothing_of_the_others(share: float) -> None:
    rng = random.Random(1)
    behind = [rng.random() < share for _ in range(3000)]
    times: list[int | None] = [START + n * 10 - DAY * late for n, late in enumerate(behind)]
    for wanted in range(0, 3000, 97):
        rank, _ = search(times, START + wanted * 10)
        right = next(n for n in range(wanted, 3000) if not behind[n])
        assert rank == right


def test_a_client_whose_clock_is_ahead_makes_it_repeat_and_not_skip() -> None:
    rng = random.Random(1)
    times: list[int | None] = [START + n * 10 + DAY * (rng.random() < 0.02) for n in range(3000)]
    for wanted in range(0, 3000, 97):
        assert search(times, START + wanted * 10)[0] <= wanted


def test_what_cannot_be_read_is_not_skipped() -> None:
    times: list[int | None] = [START + n for n in range(1000)]
    times[500:600] = [None] * 100
    assert search(times, START + 550)[0] == 500
