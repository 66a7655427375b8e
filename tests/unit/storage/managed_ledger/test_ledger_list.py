"""Positions over a list of ledgers, against a list of all entries."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.storage.managed_ledger.ledger_list import LedgerInfo, LedgerList
from pulsark.storage.managed_ledger.ledger_runs import FoldedLedgers, LedgerRun, decode_run
from pulsark.wire.position import EARLIEST, LATEST, Position

counts = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 1, 3, 5])), max_size=6
)  # (gap before the ledger's id, entries)
positions = st.one_of(
    st.builds(Position, st.integers(-1, 30), st.integers(-1, 7)),
    st.sampled_from([EARLIEST, LATEST]),
)


cuts = st.lists(st.integers(1, 3), max_size=3)
"""Lengths of folded runs at the beginning of the list."""


def build(
    shape: list[tuple[int, int]], folded: Sequence[int] = ()
) -> tuple[LedgerList, list[Position]]:
    infos, entries, ledger_id = [], [], 0
    for gap, count in shape:
        ledger_id += gap
        infos.append(LedgerInfo(ledger_id, count, count * 10, 0))
        entries += [Position(ledger_id, e) for e in range(count)]
        ledger_id += 1
    runs = []
    for length in folded:
        if len(infos) > length:
            runs.append(decode_run("", LedgerRun.of(infos[:length]).encode()))
            infos = infos[length:]
    return LedgerList(infos, Position(-1, -1), FoldedLedgers(runs)), entries


@given(counts, cuts, positions, positions)
def test_answers_are_those_of_a_plain_list(
    shape: list[tuple[int, int]], folded: list[int], p: Position, q: Position
) -> None:
    ledgers, entries = build(shape, folded)
    assert ledgers.entries == len(entries)
    assert ledgers.rank(p) == bisect_left(entries, p)
    assert [ledgers.at(rank) for rank in range(len(entries))] == entries
    last = entries[-1] if entries else Position(-1, -1)
    assert ledgers.last() == last
    end = Position(last.ledger_id, last.entry_id + 1)
    at_or_after = entries[bisect_left(entries, p) :]
    assert ledgers.at_or_after(p) == (at_or_after[0] if at_or_after else end)
    after = entries[bisect_right(entries, p) :]
    assert ledgers.after(p) == (after[0] if after else end)
    before = entries[: bisect_left(entries, p)]
    assert ledgers.before(p) == (before[-1] if before else Position(-1, -1))
    assert ledgers.between(p, q) == len([e for e in entries if p < e <= q])


@given(counts, cuts, st.integers(0, 20), positions)
def test_the_last_ledger_grows(
    shape: list[tuple[int, int]], folded: list[int], more: int, p: Position
) -> None:
    ledgers, _ = build([*shape, (2, 0)], folded)
    ledgers.grow(more)
    expected, entries = build([*shape, (2, more)])
    assert ledgers.entries == len(entries)
    assert ledgers.rank(p) == expected.rank(p)
    assert ledgers.at_or_after(p) == expected.at_or_after(p)
    assert ledgers.last() == expected.last()


def test_after_everything_was_trimmed_the_last_position_stays() -> None:
    ledgers = LedgerList([], Position(7, 41))
    assert ledgers.last() == Position(7, 41)
    assert ledgers.after(EARLIEST) == Position(7, 42)
    ledgers = LedgerList([LedgerInfo(9, 0, 0, 0, open=True)], Position(7, 41))
    assert ledgers.last() == Position(7, 41)
    ledgers.grow(1)
    assert ledgers.at_or_after(Position(7, 42)) == Position(9, 0)
    assert ledgers.before(Position(9, 0)) == Position(7, 41)


@given(counts, cuts, st.integers(0, 20), positions)
def test_a_folded_list_is_the_same_list(
    shape: list[tuple[int, int]], folded: list[int], gone: int, p: Position
) -> None:
    plain, _ = build(shape)
    ledgers, _ = build(shape, folded)
    assert len(ledgers) == len(plain)
    assert ledgers.newest() == plain.newest()
    for first in range(30):
        assert list(ledgers.infos(first)) == list(plain.infos(first))
        assert ledgers.info(first) == plain.info(first)
        assert (first in ledgers) == (first in plain)
        assert ledgers.count_of(first) == plain.count_of(first)
    assert ledgers.bytes_after(p) == plain.bytes_after(p)
    for size in range(-1, 200, 7):
        assert ledgers.position_leaving(size) == plain.position_leaving(size)
    # The same without some at the beginning.
    rest = [info for info in plain.infos() if info.ledger_id > gone]
    cut = ledgers._folded.behind(gone)
    known = {info.ledger_id: info for info in cut.infos()}
    assert [cut.info(ledger_id) for ledger_id in range(30)] == list(map(known.get, range(30)))
    tail = [info for info in rest if info.ledger_id > cut.last_id]
    ledgers, plain = LedgerList(tail, folded=cut), LedgerList(rest)
    assert list(ledgers.infos()) == rest
    assert [ledgers.at(rank) for rank in range(plain.entries)] == [
        plain.at(rank) for rank in range(plain.entries)
    ]
    assert ledgers.rank(p) == plain.rank(p)
    assert ledgers.bytes_after(p) == plain.bytes_after(p)


@pytest.mark.parametrize("folded", [0, 1, 2, 3])
def test_bytes_after_a_position_and_the_position_that_leaves_them(folded: int) -> None:
    sizes = [LedgerInfo(2, 10, 1000, 0), LedgerInfo(5, 0, 0, 0), LedgerInfo(7, 4, 100, 0)]
    runs = FoldedLedgers([LedgerRun.of(sizes[:folded])] if folded else ())
    ledgers = LedgerList([*sizes[folded:], LedgerInfo(9, 0, 0, 0, open=True)], folded=runs)
    ledgers.grow(2)
    for position, expected in (
        (EARLIEST, 1150),
        (Position(2, -1), 1150),
        (Position(2, 3), 750),
        (Position(2, 99), 150),
        (Position(4, 0), 150),
        (Position(7, 0), 125),
        (Position(9, 0), 25),
        (Position(9, 1), 0),
        (Position(11, 1), 0),
    ):
        assert ledgers.bytes_after(position, 50) == expected
    for size in range(-5, 1300):
        found = ledgers.position_leaving(size, 50)
        assert ledgers.bytes_after(found, 50) <= max(size, 0)
        before = ledgers.before(found)
        assert found == EARLIEST or ledgers.bytes_after(before, 50) > size
    assert LedgerList().bytes_after(EARLIEST) == 0
    assert LedgerList((), Position(3, 4)).position_leaving(0) == Position(3, 4)


def test_a_run_is_stored_in_numbers_whose_last_byte_is_the_largest() -> None:
    infos = [LedgerInfo(258, 3, 770, 1), LedgerInfo(259, 1, 5, 2)]
    document = json.loads(LedgerRun.of(infos).encode())
    columns = {k: b64decode(text) for k, text in document.items() if k != "version"}
    assert {k: struct.unpack(f"<{len(data) // 8}q", data) for k, data in columns.items()} == {
        "ledgerIds": (258, 259),
        "entriesBefore": (0, 3, 4),
        "bytesBefore": (0, 770, 775),
        "closedMs": (1, 2),
    }
