"""Runs of ``tests/sim/world.py``: each seed a broker, its clients and its faults at random.

``python -m tests.sim --seeds 20000`` runs more of them, ``SEED=17 make sim`` only that one.

Planted bugs show that the checks can fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from pulsark.dispatch.model.consumer import Consumer
from pulsark.dispatch.model.entry import Entry
from pulsark.dispatch.producer.deduplication import Deduplication
from pulsark.dispatch.subscription.acknowledgements import Acknowledgements
from pulsark.dispatch.subscription.dispatcher import Dispatcher
from pulsark.dispatch.subscription.key_shared import KeyShared
from pulsark.dispatch.tables import erasing_here
from pulsark.storage.bookie.journal_format import GROUP_HEAD_SIZE
from pulsark.storage.bookie.segment_writer import SegmentWriter
from pulsark.storage.cursor.state import CursorState
from pulsark.wire.position import Position
from tests.sim import __main__ as command
from tests.sim.world import World
from tests.support.deliveries import Broken

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "200"))
GROUPS = 10
PLANTED_SEEDS = 60
"""Every planted bug shows within so many seeds."""


@pytest.mark.parametrize("group", range(min(GROUPS, SEEDS)))
def test_promises_hold(group: int) -> None:
    _run_all(range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS))


def _run_all(seeds: range) -> None:
    for seed in seeds:
        World(seed).run()


# -- planted bugs ------------------------------------------------------------------------------


def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """The journal says that a group is durable without having synced it."""

    def sync(self: SegmentWriter, size: int) -> None:
        self.size += GROUP_HEAD_SIZE + size

    patch.setattr(SegmentWriter, "sync", sync)


def read_position_is_mark_delete(patch: pytest.MonkeyPatch) -> None:
    """What was read for consumers counts as acknowledged."""
    dispatch = Dispatcher._dispatch

    def planted(self: Dispatcher, entries: list[Entry]) -> bool:
        done = dispatch(self, entries)
        read = self.reader.position
        self._cursor.ack_cumulative(Position(read.ledger_id, read.entry_id - 1), None, None)
        return done

    patch.setattr(Dispatcher, "_dispatch", planted)


def ack_set_replaces(patch: pytest.MonkeyPatch) -> None:
    """A second acknowledgement inside a batch forgets the first."""
    ack_part = CursorState._ack_part

    def planted(self: CursorState, position: Position, *rest: Any) -> int:
        self.masks.discard(position)
        return ack_part(self, position, *rest)

    patch.setattr(CursorState, "_ack_part", planted)


def slots_do_not_drain(patch: pytest.MonkeyPatch) -> None:
    """The new owner of a key gets it at once."""
    choose = KeyShared.choose

    def planted(self: KeyShared, entry: Entry) -> Consumer | None:
        slot = self.selector.slot(entry.key_hash)
        if self._drains(slot, self._owner(slot)):
            del self._holdings[slot]
        return choose(self, entry)

    patch.setattr(KeyShared, "choose", planted)


def deduplication_marks_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    """A sequence id counts as stored as soon as its append begins."""
    admit = Deduplication.admit

    def planted(self: Deduplication, entry: Entry) -> bool:
        taken = admit(self, entry)
        mark = self._under_way.get(entry)
        if mark is not None:
            mark[0].store(mark[1])
        return taken

    patch.setattr(Deduplication, "admit", planted)


def what_was_erased_stays_in_memory(patch: pytest.MonkeyPatch) -> None:
    """The cache of a topic, and what its subscriptions have read ahead."""
    patch.setattr(erasing_here, "_forget_content", lambda topic: None)
    patch.setattr(Acknowledgements, "erased", lambda self, acks: None)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    ack_before_fsync: "C1|C2|C4|C6|lost|moved",
    read_position_is_mark_delete: "C1|C3|C6",
    ack_set_replaces: "C6",
    slots_do_not_drain: "C3: key-shared",
    deduplication_marks_before_it_is_stored: "C1|C5",
    what_was_erased_stays_in_memory: "C11",
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(Broken, match=PLANTED[bug]):
        _run_all(range(PLANTED_SEEDS))


def test_the_command_runs_seeds_twice_now_and_then_and_names_the_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--seed", "100", "--seeds", "1", "--processes", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 seeds, 0 failed, ")
    monkeypatch.setattr(World, "run", lambda self: 1 // 0)
    assert command.main(["--seed", "7", "--hours", "1", "--processes", "1"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("seed 7 failed: Faults(bookies=")
    assert "ZeroDivisionError" in shown
