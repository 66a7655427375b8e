"""Bookies in memory, a metadata store, and listeners that remember: for tests of ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import ledger_path
from pulsark.runtime import Runtime
from pulsark.storage.ledger.manager import LedgerManager, LedgerMetadata
from pulsark.storage.ledger.metadata import decode_ledger_metadata
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.managed_ledger import (
    LedgerView,
    ManagedLedger,
    ManagedLedgerConfig,
)
from pulsark.wire.position import EARLIEST, Position
from tests.sim.disk import SimDisk
from tests.sim.simulation import Simulation
from tests.support.memory_bookie import MemoryBookie

T = TypeVar("T")


@dataclass
class Writes:
    """Listens to a ledger."""

    confirmed: list[int] = field(default_factory=list)
    errors: list[StorageError] = field(default_factory=list)

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        assert not self.errors, "confirmed after a failure"
        self.confirmed.append(last_confirmed)

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        assert not self.errors, "failed twice"
        self.errors.append(error)


@dataclass
class Appends:
    """Listens to a managed ledger. Contexts are told once, in order."""

    confirmed: dict[Position, bytes] = field(default_factory=dict)
    runs: list[int] = field(default_factory=list)
    contexts: list[Any] = field(default_factory=list)
    failed: list[tuple[Any, Exception]] = field(default_factory=list)
    recovered: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Failed ledgers whose end was found."""
    closed: int = 0
    attached: list[int] = field(default_factory=list)

    def entries_confirmed(
        self, ledger_id: int, first_entry_id: int, entries: list[bytes], contexts: list[Any]
    ) -> None:
        assert len(entries) == len(contexts) > 0
        self.runs.append(len(entries))
        self.contexts += contexts
        for offset, entry in enumerate(entries):
            position = Position(ledger_id, first_entry_id + offset)
            assert position > max(self.confirmed, default=EARLIEST)
            self.confirmed[position] = entry

    def append_failed(self, contexts: list[Any], error: Exception) -> None:
        assert contexts
        self.failed += [(context, error) for context in contexts]

    def entries_recovered(self, ledger_id: int, first_entry_id: int, count: int) -> None:
        self.ends.append(ledger_id)
        if count:
            self.recovered.append((ledger_id, first_entry_id, count))

    def ledgers_attached(self, infos: Sequence[LedgerInfo]) -> None:
        self.attached += [info.ledger_id for info in infos]

    def ledger_closed(self) -> None:
        self.closed += 1

    @property
    def failed_contexts(self) -> list[Any]:
        return [context for context, _ in self.failed]


class Cluster:
    """Some bookies, one metadata tree, and as many owners as a test likes."""

    def __init__(self, sim: Simulation, count: int = 1, *, keeps_length: bool = True) -> None:
        self.runtime: Runtime = sim.runtime(SimDisk())
        self.clock = self.runtime.clock
        self.tree = MemoryTree()
        self.bookies = {
            name: MemoryBookie(name, keeps_length=keeps_length)
            for name in (f"b{number}" for number in range(1, count + 1))
        }

    @property
    def all(self) -> list[MemoryBookie]:
        return list(self.bookies.values())

    def add(self, name: str) -> MemoryBookie:
        """One more bookie."""
        bookie = self.bookies[name] = MemoryBookie(name)
        return bookie

    def manager(self) -> LedgerManager:
        """A new owner, with a session of its own."""
        return LedgerManager(MemoryMetadataStore(self.tree), self.bookies, self.runtime)

    def stored(self, ledger_id: int = 0) -> LedgerMetadata:
        """A ledger's metadata as the store has it."""
        found = self.tree.get(ledger_path(ledger_id))
        assert found is not None
        return decode_ledger_metadata(ledger_id, found.value)

    async def open(
        self,
        listener: Appends | None = None,
        config: ManagedLedgerConfig | None = None,
        path: str = "/managed-ledgers/t/n/persistent/x",
        manager: LedgerManager | None = None,
    ) -> ManagedLedger:
        """A new owner of a managed ledger; without ``manager`` in a broker of its own."""
        store = MemoryMetadataStore(self.tree)
        return await ManagedLedger.open(
            path,
            LedgerManager(store, self.bookies, self.runtime) if manager is None else manager,
            store,
            config if config is not None else ManagedLedgerConfig(),
            self.runtime,
            listener if listener is not None else Appends(),
        )


def simulate(main: Callable[[Simulation], Coroutine[Any, Any, T]], seed: int = 0) -> T:
    """Run ``main(sim)`` in virtual time."""
    with Simulation(seed) as sim:
        result: T = sim.run(main(sim))
        return result


async def turns(count: int = 30) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle(managed: ManagedLedger) -> None:
    """Let time pass until appends are told of and failures are worked off."""
    await turns()
    await asyncio.sleep(3)
    await turns()


async def read_all(view: LedgerView, max_bytes: int = 1 << 20) -> list[tuple[Position, bytes]]:
    """Everything that can be read, in several calls."""
    found: list[tuple[Position, bytes]] = []
    position = EARLIEST
    while batch := await view.read(position, 7, max_bytes):
        found += batch
        position = view.next_position(batch[-1][0])
    return found
