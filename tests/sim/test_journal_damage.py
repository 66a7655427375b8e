"""The files of a journal rot, are cut or lost while nobody uses them; then its bookie starts.

Whatever was harmed: an entry that was acknowledged comes with its bytes, or is said to be damaged.
It is never said not to exist, nor skipped, since whoever asks would end its ledger there. Fences
hold, and both stay so while the bookie goes on and is started again.

Not harmed is what nothing could tell of: the last segment as a whole, and its last group.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from pulsark.errors import (
    CorruptEntryError,
    EntrySealedError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from pulsark.storage.bookie.embedded import EmbeddedBookie
from pulsark.storage.bookie.journal_format import GROUP_MAGIC
from tests.sim.bookies import append_later
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.sim.test_journal_crash import (
    CHECKPOINT,
    PROMPT,
    Promises,
    Script,
    open_bookie,
)

JOURNAL = "/b/journal/"
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(4)
HARMS = 40
"""Each to a disk of its own."""
ROUNDS = 40


def lived(seed: int) -> tuple[SimDisk, Promises]:
    """A bookie that was stopped, and did not write much since it was started again."""
    disk, promises = SimDisk(), Promises()
    script = Script(promises, random.Random(seed))
    with Simulation(seed, prompt=PROMPT) as sim:

        async def life(rounds: int) -> None:
            bookie = await open_bookie(sim, disk)
            await script.run(bookie, rounds)
            await bookie.close()

        sim.run(life(ROUNDS))
        sim.run(life(ROUNDS // 8))
    return disk, promises


def harm(disk: SimDisk, rng: random.Random) -> str:
    """Damage one file of the journal, durably; says how."""
    segments = sorted(path for path in disk.files() if path.endswith(".journal"))
    what = rng.choice(("lost", "emptied", "cut", "flipped", "zeroed", "misdirected"))
    path = rng.choice(segments if what in ("flipped", "zeroed", "misdirected") else segments[:-1])
    content = bytearray(disk.content(path))
    size = len(content) if path != segments[-1] else content.rindex(GROUP_MAGIC)
    start = rng.randrange(size)
    end = min(size, start + rng.choice((1, 50, 512)))
    if what == "lost":
        disk.discard(path)
    elif what == "emptied":
        disk.edit(path, b"")
    elif what == "cut":
        disk.edit(path, bytes(content[:start]))
    elif what == "flipped":
        disk.flip(path, start, 1 << rng.randrange(8))
    elif what == "zeroed":
        content[start:end] = bytes(end - start)
        disk.edit(path, bytes(content))
    else:
        other = disk.content(rng.choice(segments))
        content[start:end] = other[start:end].ljust(end - start, b"\0")
        disk.edit(path, bytes(content))
    if rng.random() < 0.5 and CHECKPOINT in disk.files():
        disk.discard(CHECKPOINT)
        what += ", without a checkpoint"
    return f"{path} {what} from {start} to {end}"


async def check(bookie: EmbeddedBookie, promises: Promises) -> Counter[str]:
    """How often each kind of answer came."""
    answers: Counter[str] = Counter()
    acked: dict[int, list[int]] = {}
    for ledger_id, entry_id in sorted(promises.acked):
        released = entry_id <= promises.asked_release.get(ledger_id, -1)
        if ledger_id not in promises.asked_delete and not released:
            acked.setdefault(ledger_id, []).append(entry_id)
    for ledger_id, ids in acked.items():
        for entry_id in ids:
            answers[await answer(bookie, promises, ledger_id, entry_id, ids)] += 1
    for ledger_id in promises.fenced - promises.asked_delete:
        error = await append_later(bookie, ledger_id, 10_000, [b"zombie"])
        assert isinstance(error, LedgerFencedError), f"ledger {ledger_id}: {error}"
    return answers


async def answer(
    bookie: EmbeddedBookie, promises: Promises, ledger_id: int, entry_id: int, ids: list[int]
) -> str:
    """Ask for all entries from one on, as recovery does."""
    try:
        found = await bookie.read(ledger_id, entry_id, 1 << 40, 500)
    except CorruptEntryError:
        return "damaged"
    except (EntrySealedError, NoSuchEntryError, NoSuchLedgerError) as error:
        raise AssertionError(f"{ledger_id}:{entry_id} was acknowledged: {error}") from error
    for number, payload in found:
        assert promises.sent[ledger_id, number] == payload, f"{ledger_id}:{number}"
    numbers = [number for number, _ in found]
    expected = [number for number in ids if entry_id <= number <= numbers[-1]]
    missing = set(expected) - set(numbers)
    assert not missing, f"{ledger_id}: {missing} were passed over from {entry_id} on"
    return "there"


async def survives(sim: Simulation, disk: SimDisk, promises: Promises, how: str) -> Counter[str]:
    """Start, go on, start again: what the first start answered."""
    bookie = await open_bookie(sim, disk)
    damaged = set(bookie.recovery.damaged)
    assert all(start < end for _, start, end in damaged)
    answers = await check(bookie, promises)
    script = Script(promises, random.Random(sim.seed))
    script.next_ledger = 1000
    await script.run(bookie, 5)
    await bookie.close()
    if "without a checkpoint" in how and CHECKPOINT in disk.files():
        disk.discard(CHECKPOINT)
    bookie = await open_bookie(sim, disk)
    again = bookie.recovery.damaged
    assert set(again) <= damaged, "what is damaged stays as it is, or goes with its segment"
    assert len(set(again)) == len(again)
    await check(bookie, promises)
    await bookie.close()
    return answers


@pytest.mark.feature("F76")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_there_or_known_to_be_damaged(seed: int) -> None:
    disk, promises = lived(seed)
    rng = random.Random(seed)
    answers: Counter[str] = Counter()
    for _ in range(HARMS):
        harmed = disk.survivor("none", rng)
        how = harm(harmed, rng)
        try:
            with Simulation(seed, prompt=PROMPT) as sim:
                answers += sim.run(survives(sim, harmed, promises.copy(), how))
        except BaseException:
            print(f"SEED={seed}: {how}")
            raise
    assert answers["there"] > answers["damaged"] > 0
