"""One writer, several recoveries, bookies that are slow, die and lie: at random, many times.

The checker is tested too: with a rule of the protocol broken on purpose, it must complain.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pulsark.errors import NoSuchEntryError, StorageError
from pulsark.runtime import Done
from pulsark.storage import ledger_writer, recovery
from pulsark.storage.bookie import EntryRun, LedgerTail
from pulsark.storage.ledger import LedgerConfig, LedgerManager, LedgerMetadata
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster
from tests.support.memory_bookie import MemoryBookie

CONFIGS = [(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 5, 3), (1, 1, 1), (2, 2, 1), (2, 2, 2)]
Faults = Callable[["SlowBookie"], None]


class SlowBookie(MemoryBookie):
    """Takes random time before and after each effect, and fails in between for a while."""

    def __init__(self, bookie_id: str, rng: random.Random) -> None:
        super().__init__(bookie_id)
        self.rng = rng
        self._free_at = self._answer_at = 0.0
        self.forgets_fences = False
        self.calls_damage_absence = False

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()

        def store() -> None:
            error = self._store(run, recovery, reserve)
            delay = self.delay()
            # Timers of the same moment run in any order, and answers must not.
            self._answer_at = max(self._answer_at + 1e-6, loop.time() + delay)
            loop.call_at(self._answer_at, answer, error)

        def answer(error: BaseException | None) -> None:
            done(StorageError("the answer was lost") if self.down and error is None else error)

        self._free_at = max(self._free_at + 1e-6, loop.time()) + self.delay()
        loop.call_at(self._free_at, store)

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        await asyncio.sleep(self.delay())
        answer = await super().tail(ledger_id, fence=fence and not self.forgets_fences)
        await asyncio.sleep(self.delay())
        self._check_up()
        return answer

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        await asyncio.sleep(self.delay())
        try:
            found = await super().read(ledger_id, first_entry_id, last_entry_id, max_bytes)
        except StorageError as e:
            if self.calls_damage_absence and "corrupt" in str(e):
                raise NoSuchEntryError(str(e)) from None
            raise
        await asyncio.sleep(self.delay())
        return found

    def delay(self) -> float:
        # Mostly quick, sometimes much later than everything else.
        return self.rng.choice([0.0, 0.001, 0.001, 0.002, 0.05])


@dataclass
class Race:
    """One run: what the writer pushed and heard, and what the recoveries found."""

    seed: int
    faults: Faults | None = None
    rng: random.Random = field(init=False)
    pushed: dict[int, bytes] = field(default_factory=dict)
    last_confirmed: int = -1
    failed: bool = False
    found: list[LedgerMetadata] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        assert not self.failed, "confirmed after the failure"
        assert last_confirmed > self.last_confirmed
        self.last_confirmed = last_confirmed

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        self.failed = True

    async def run(self, sim: Simulation) -> None:
        rng = self.rng
        config = LedgerConfig(*rng.choice(CONFIGS))
        cluster = Cluster(sim, 0)
        for number in range(config.ensemble_size + rng.randint(0, 2)):
            slow = SlowBookie(f"b{number}", rng)
            cluster.bookies[slow.bookie_id] = slow
            if self.faults is not None:
                self.faults(slow)
        owner = cluster.manager()
        tasks = [asyncio.ensure_future(self.write(owner, config))]
        await asyncio.sleep(rng.uniform(0, 0.1))
        tasks.append(asyncio.ensure_future(self.trouble(cluster, config)))
        for _ in range(rng.randint(1, 2)):
            await asyncio.sleep(rng.uniform(0, 0.1))
            tasks.append(asyncio.ensure_future(self.recover(cluster.manager())))
        await asyncio.wait(tasks, timeout=rng.uniform(0, 0.2))
        if rng.random() < 0.3:
            tasks[-1].cancel()  # a recovery that dies half way
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
        for bookie in cluster.all:
            bookie.down = False
        await self.recover(cluster.manager())
        await asyncio.sleep(5)
        await self.check(cluster)

    async def write(self, owner: LedgerManager, config: LedgerConfig) -> None:
        rng = self.rng
        writer = await owner.create(config, self)
        for _ in range(rng.randint(1, 12)):
            payloads = [rng.randbytes(rng.randint(1, 20)) for _ in range(rng.randint(1, 3))]
            try:
                first = writer.append(payloads)
            except StorageError:
                return
            self.pushed.update(enumerate(payloads, first))
            await asyncio.sleep(rng.choice([0, 0.001, 0.01, 0.03]))
        if rng.random() < 0.3:
            try:
                self.found.append(await writer.close())
            except StorageError:
                return

    async def trouble(self, cluster: Cluster, config: LedgerConfig) -> None:
        """At most as many bookies are down or damaged as an ack quorum can do without."""
        rng, allowed = self.rng, config.ack_quorum - 1
        victims = rng.sample(cluster.all, min(len(cluster.all), allowed))
        for victim in victims:
            held = sorted(victim.entries(0))
            if held and rng.random() < 0.5:
                victim.corrupt(0, rng.choice(held))
            else:
                victim.down = True
        spare_victims = [b for b in cluster.all if b not in victims]
        if rng.random() < 0.3:
            # Too many: nothing goes on until they are back, but nothing goes wrong either.
            rng.choice(spare_victims or victims).down = True
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        for bookie in cluster.all:
            bookie.down = False

    async def recover(self, manager: LedgerManager) -> None:
        while True:
            try:
                self.found.append(await manager.recover(0))
                return
            except StorageError:
                await asyncio.sleep(0.1)

    async def check(self, cluster: Cluster) -> None:
        assert len({m.encode() for m in self.found}) == 1, "two ends of one ledger"
        metadata = self.found[0]
        last = metadata.last_entry_id
        assert last >= self.last_confirmed, "a confirmed entry is gone"
        manager = cluster.manager()
        read: dict[int, bytes] = {}
        while len(read) <= last:
            batch = await manager.read(0, len(read), last, 1 << 20)
            assert batch
            read.update(batch)
        assert read == {e: self.pushed[e] for e in range(last + 1)}, "other bytes"
        assert metadata.length == sum(map(len, read.values()))
        for bookie in cluster.all:
            for entry_id, payload in bookie.entries(0).items():
                assert payload == self.pushed[entry_id]


def race(seed: int, faults: Faults | None = None) -> None:
    with Simulation(seed) as sim:
        sim.run(Race(seed, faults).run(sim))


@pytest.mark.parametrize("block", range(20))
def test_no_race_loses_or_invents_anything(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        race(seed)


# Planted bugs.


def forget_fences(bookie: SlowBookie) -> None:
    bookie.forgets_fences = True


def call_damage_absence(bookie: SlowBookie) -> None:
    bookie.calls_damage_absence = True


def no_fault(bookie: SlowBookie) -> None:
    """The bug is elsewhere."""


def lac_plus_one(patch: pytest.MonkeyPatch) -> None:
    right = ledger_writer.LedgerWriter._quorum_confirmed
    patch.setattr(
        ledger_writer.LedgerWriter,
        "_quorum_confirmed",
        lambda self: min(right(self) + 1, self.last_pushed),
    )


def count_the_dead(patch: pytest.MonkeyPatch) -> None:
    """What a bookie confirmed before it failed goes on counting for its replacement."""
    right = ledger_writer._Slot

    def slot(index: int, bookie: object, confirmed: int) -> object:
        return right(index, bookie, 10**9)  # type: ignore[arg-type]

    patch.setattr(ledger_writer, "_Slot", slot)


def one_is_sure_enough(patch: pytest.MonkeyPatch) -> None:
    async def read_on(self: recovery._Recovery, entry_id: int) -> list[bytes]:
        holders = self._metadata.holders(self._ensemble, entry_id)
        answers = await recovery._gather([self._ask(name, entry_id) for name in holders])
        runs = [answer for answer in answers if isinstance(answer, list)]
        return max(runs, key=len, default=[])

    patch.setattr(recovery._Recovery, "_read_on", read_on)


def start_after_the_last_entry(patch: pytest.MonkeyPatch) -> None:
    """The last entry that a bookie holds is taken for the last that was confirmed."""
    right = recovery._Recovery._tail

    async def tail(self: recovery._Recovery, bookie_id: str) -> LedgerTail:
        found = await right(self, bookie_id)
        return LedgerTail(found.last_entry_id, found.last_entry_id, -1)

    patch.setattr(recovery._Recovery, "_tail", tail)


def nothing(patch: pytest.MonkeyPatch) -> None:
    """The bug is in the bookies."""


@pytest.mark.parametrize(
    ("plant", "faults"),
    [
        (nothing, forget_fences),
        (nothing, call_damage_absence),
        (lac_plus_one, no_fault),
        (count_the_dead, no_fault),
        (one_is_sure_enough, no_fault),
        (start_after_the_last_entry, no_fault),
    ],
)
def test_the_checker_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(500):
        try:
            race(seed, faults)
        except (AssertionError, StorageError):
            return
    pytest.fail("500 races and nothing noticed")
