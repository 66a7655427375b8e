"""Checkpoints that are written while the bookie works, between its groups and over its rolls.

Whatever a checkpoint caught of what happened meanwhile: the index that a start makes with it is
the index that a start makes from the journal alone.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pulsark.storage.bookie import index_checkpoint, journal_recovery
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.index import BookieIndex
from pulsark.storage.bookie.index_checkpoint import Checkpoint, CheckpointDraft, JournalOffset
from pulsark.storage.bookie.journal_recovery import RecoveredJournal, recover_journal
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.sim.test_journal_crash import CHECKPOINT, SETTINGS, Promises, Script, check_counts

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + (1 if "SEED" in os.environ else 30))
OFTEN = replace(SETTINGS, checkpoint_bytes=1500, journal_max_size=4096)
ROUNDS = 100


def disks_with_checkpoints(seed: int) -> list[SimDisk]:
    """What a crash would leave, each time that a new checkpoint is durable."""
    disk, found = SimDisk(), []
    seen = b""

    def look() -> None:
        nonlocal seen
        durable = disk.survivor("none", random.Random(seed))
        content = durable.content(CHECKPOINT) if CHECKPOINT in durable.files() else b""
        if content != seen:
            seen = content
            found.append(durable)

    disk.before_step = look
    with Simulation(seed, prompt=0.9) as sim:

        async def main() -> None:
            runtime = sim.runtime(disk)
            bookie = await EmbeddedBookie.open("b", "/b/journal", "/b/ledgers", OFTEN, runtime)
            await Script(Promises(), random.Random(seed)).run(bookie, ROUNDS)
            check_counts(bookie._index)
            await bookie.close()

        sim.run(main())
    return found


def recover(disk: SimDisk) -> RecoveredJournal:
    instance = bytes.fromhex(json.loads(disk.content("/b/ledgers/BOOKIE"))["instanceId"])
    return recover_journal(disk, "/b/journal", "/b/ledgers", instance)


def what_it_knows(index: BookieIndex) -> dict[int, Any]:
    return {
        ledger_id: (
            state.released,
            state.last_confirmed,
            state.confirmed_bytes,
            state.last_entry,
            [(n, s.segment_id) for s in state.extents() for n in range(s.first, s.last + 1)],
        )
        for ledger_id, state in index.ledgers.items()
    }


def fences(index: BookieIndex) -> set[int]:
    return {ledger_id for ledger_id, state in index.ledgers.items() if state.fenced}


def compare(disk: SimDisk) -> None:
    alone = disk.survivor("none", random.Random(0))
    alone.discard(CHECKPOINT)
    with_it, without = recover(disk), recover(alone)
    assert with_it.report.checkpoint == "used"
    assert without.report.checkpoint != "used"
    check_counts(with_it.index)
    assert what_it_knows(with_it.index) == what_it_knows(without.index)
    # A fence holds from when it is asked for: a checkpoint may have it before the journal.
    assert fences(with_it.index) >= fences(without.index)
    assert with_it.index.segments.keys() == without.index.segments.keys()
    assert with_it.index.max_ledger_id == without.index.max_ledger_id
    assert with_it.next_segment_id == without.next_segment_id


def compare_all(seeds: range) -> int:
    """How many checkpoints were compared."""
    compared = 0
    for seed in seeds:
        print(f"SEED={seed}")
        for disk in disks_with_checkpoints(seed):
            compare(disk)
            compared += 1
    return compared


def test_a_start_with_a_checkpoint_knows_what_one_without_it_knows() -> None:
    assert compare_all(SEEDS) > 3 * len(SEEDS)


# Planted bugs.


def counts_of_the_replay_are_believed(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint's extents are counted before the journal is applied, not after it."""
    load, count = journal_recovery.load_checkpoint, BookieIndex.recount

    def planted(*args: Any) -> Checkpoint | str:
        loaded = load(*args)
        if isinstance(loaded, Checkpoint):
            count(loaded.index)
        return loaded

    patch.setattr(journal_recovery, "load_checkpoint", planted)
    patch.setattr(BookieIndex, "recount", lambda self: None)


def the_place_is_noted_after_the_slices(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint claims to hold all that came while it was made."""

    class Late(CheckpointDraft):
        def __init__(self, index: BookieIndex, place: JournalOffset, *rest: Any) -> None:
            super().__init__(index, place, *rest)
            self._index = index

        def finish(self) -> bytes:
            newest = max(self._index.segments.values(), key=lambda s: s.segment_id)
            fields = list(self._head_fields)
            fields[5:7] = newest.segment_id, newest.size
            self._head_fields = tuple(fields)  # type: ignore[assignment]
            return super().finish()

    patch.setattr(index_checkpoint, "CheckpointDraft", Late)


@pytest.mark.parametrize(
    "plant", [counts_of_the_replay_are_believed, the_place_is_noted_after_the_slices]
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        compare_all(range(30))
