"""One writer, several recoveries, bookies that are slow, die and lie: at random, many times.

What the writer says or hears stalls on its way to a bookie, as when its process is paused.
Requests and answers of recoveries get lost on lossy days, each by itself: a bookie that did not
hear the fence may be there again when it is asked for an entry, and the other way round.

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
from pulsark.storage.bookie.bookie import EntryRun, LedgerTail
from pulsark.storage.ledger import recovery
from pulsark.storage.ledger import writer as ledger_writer
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager, LedgerMetadata
from tests.sim.ledger_ends import WatchedTree
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster
from tests.support.memory_bookie import MemoryBookie

CONFIGS = [(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (5, 5, 3), (1, 1, 1), (2, 2, 1), (2, 2, 2)]
BLOCKS = 20
SEEDS = 80
Faults = Callable[["SlowBookie"], None]


@dataclass
class Way:
    """One direction of the connection of a writer and a bookie. What is said stays in order."""

    stalled_until: float = 0.0
    """Until then nothing arrives: it is on its way, or its receiver is paused."""
    _last: float = 0.0

    def send(self, delay: float, arrive: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._last = max(self._last + 1e-6, loop.time() + delay, self.stalled_until)
        loop.call_at(self._last, arrive)


class SlowBookie(MemoryBookie):
    """Takes random time before and after each effect, and fails in between for a while."""

    def __init__(self, bookie_id: str, rng: random.Random) -> None:
        super().__init__(bookie_id)
        self.rng = rng
        self.loses = 0.0
        """Part of the requests for tails and entries that is lost, and of their answers."""
        self.unreadable = False
        """It takes entries and fences, and its disk does not give anything back."""
        self.requests, self.answers = Way(), Way()
        """Those of the writer; recoveries have connections of their own."""
        self._of_recovery = Way(), Way()
        self.forgets_fences = False
        self.calls_damage_absence = False

    def append(
        self, run: EntryRun, done: Done, *, recovery: bool = False, reserve: bool = False
    ) -> None:
        requests, answers = self._of_recovery if recovery else (self.requests, self.answers)

        def store() -> None:
            error = self._store(run, recovery, reserve)
            answers.send(self.delay(), lambda: answer(error))

        def answer(error: BaseException | None) -> None:
            done(StorageError("the answer was lost") if self.down and error is None else error)

        requests.send(self.delay(), store)

    async def tail(self, ledger_id: int, *, fence: bool) -> LedgerTail:
        await self._way()
        answer = await super().tail(ledger_id, fence=fence and not self.forgets_fences)
        await self._way()
        self._check_up()
        return answer

    async def read(
        self, ledger_id: int, first_entry_id: int, last_entry_id: int, max_bytes: int
    ) -> list[tuple[int, bytes]]:
        await self._way()
        if self.unreadable:
            raise StorageError(f"{self.bookie_id}: the disk cannot be read")
        try:
            found = await super().read(ledger_id, first_entry_id, last_entry_id, max_bytes)
        except StorageError as e:
            if self.calls_damage_absence and "corrupt" in str(e):
                raise NoSuchEntryError(str(e)) from None
            raise
        await self._way()
        return found

    async def _way(self) -> None:
        await asyncio.sleep(self.delay() if self.rng.random() < 0.2 else 0.001)
        if self.rng.random() < self.loses:
            raise StorageError(f"{self.bookie_id}: the message was lost")

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
    tree: WatchedTree = field(init=False)

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
        cluster.tree = self.tree = WatchedTree(cluster.bookies)
        loses = rng.choice((0.0, 0.3, 0.3))
        bookies: list[SlowBookie] = []
        for number in range(config.ensemble_size + rng.randint(0, 2)):
            slow = SlowBookie(f"b{number}", rng)
            slow.loses = loses
            slow.tells_end = self.seed % 2 == 0 or number % 2 == 0
            bookies.append(slow)
            cluster.bookies[slow.bookie_id] = slow
            if self.faults is not None:
                self.faults(slow)
        owner = cluster.manager()
        tasks = [asyncio.ensure_future(self.write(owner, config))]
        soon = rng.choice((0.01, 0.1))
        await asyncio.sleep(rng.uniform(0, soon))
        if rng.random() < 0.6:
            tasks.append(asyncio.ensure_future(self.trouble(bookies, config)))
        if rng.random() < 0.8:
            self.stall(bookies)
        for _ in range(rng.randint(1, 2)):
            await asyncio.sleep(rng.uniform(0, soon))
            tasks.append(asyncio.ensure_future(self.recover(cluster.manager())))
        await asyncio.wait(tasks, timeout=rng.uniform(0, 0.2))
        if rng.random() < 0.3:
            tasks[-1].cancel()  # a recovery that dies half way
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
        for slow in bookies:
            slow.loses = 0.0
            slow.down = slow.unreadable = False
        await self.recover(cluster.manager())
        await asyncio.sleep(5)
        await self.check(cluster)

    async def write(self, owner: LedgerManager, config: LedgerConfig) -> None:
        rng = self.rng
        writer = await owner.create(config, self)
        pauses = rng.choice(((0, 0.001, 0.01, 0.03), (0, 0, 0, 0, 0.3)))
        for _ in range(rng.randint(1, 12)):
            payloads = [rng.randbytes(rng.randint(1, 20)) for _ in range(rng.randint(1, 3))]
            try:
                first = writer.append(payloads)
            except StorageError:
                return
            self.pushed.update(enumerate(payloads, first))
            await asyncio.sleep(rng.choice(pauses))
        if rng.random() < 0.3:
            try:
                self.found.append(await writer.close())
            except StorageError:
                return

    async def trouble(self, bookies: list[SlowBookie], config: LedgerConfig) -> None:
        """At most as many bookies are down or damaged as an ack quorum can do without."""
        rng, allowed = self.rng, config.ack_quorum - 1
        victims = rng.sample(bookies, min(len(bookies), allowed))
        for victim in victims:
            held = sorted(victim.entries(0))
            what = rng.choice(("down", "unreadable", "unreadable", "damaged"))
            if held and what == "damaged":
                victim.corrupt(0, rng.choice(held))
            elif what == "unreadable":
                victim.unreadable = True
            else:
                victim.down = True
        spare_victims = [b for b in bookies if b not in victims]
        if rng.random() < 0.3:
            # Too many: nothing goes on until they are back, but nothing goes wrong either.
            rng.choice(spare_victims or victims).down = True
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        for bookie in bookies:
            bookie.down = bookie.unreadable = False

    def stall(self, bookies: list[SlowBookie]) -> None:
        """Some of what the writer says and hears comes when it has been replaced, perhaps."""
        now = asyncio.get_running_loop().time()
        for bookie in bookies:
            way = self.rng.choice((bookie.requests, bookie.requests, bookie.answers))
            way.stalled_until = now + self.rng.choice((0.0, 0.1, 1.0))

    async def recover(self, manager: LedgerManager) -> None:
        while True:
            try:
                self.found.append(await manager.recover(0))
                return
            except StorageError:
                await asyncio.sleep(self.rng.choice((0.01, 0.1)))

    async def check(self, cluster: Cluster) -> None:
        assert not self.tree.broken, self.tree.broken
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


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_race_loses_or_invents_anything(block: int) -> None:
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
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
        asked = {name: self._ask(name, entry_id) for name in holders}
        answers = await self._enough(asked, lambda _: False)
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
