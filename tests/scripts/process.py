"""The process that scripts talk to: a real broker over a bookie on the simulated disk."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsark.config.keys import key_index
from pulsark.config.settings import Settings
from pulsark.dispatch.broker import Broker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import ConfigError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.storage.ledger.manager import LedgerManager
from tests.scripts.script import ScriptError
from tests.sim.bookies import open_bookie
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk, Survival
from tests.sim.simulation import Simulation
from tests.support.inline_table import inline_tables

QUORUMS = {
    f"managedLedgerDefault{name}": 1 for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
}
"""There is one bookie. All other settings are the broker's own defaults."""

OTHER_FILE, OTHER_BYTES = "/other", 1 << 20


@dataclass
class Machine:
    """What outlives a broker: its disk, its metadata, its settings and the time."""

    disk: SimDisk = field(default_factory=SimDisk)
    tree: MemoryTree = field(default_factory=MemoryTree)
    settings: dict[str, object] = field(default_factory=lambda: dict(QUORUMS))
    elapsed_ms: int = 0

    def configure(self, options: Mapping[str, str]) -> None:
        """Change settings, as a properties file would. They count from the next start on."""
        known = key_index()
        for name, text in options.items():
            try:
                self.settings[name] = known[name].parse(text)
            except (KeyError, ConfigError) as error:
                raise ScriptError(f"No such setting: {name}={text}") from error

    def fill_disk(self) -> None:
        """Others fill the disk up to the last twentieth, which is the broker's reserve."""
        if OTHER_FILE not in self.disk.files():
            self.disk.write_new(OTHER_FILE, bytes(OTHER_BYTES))
        self.disk.capacity = self.disk.used() * 20 // 19

    def crash(self, survival: Survival) -> None:
        """The process is gone. ``none``: the power failed, what was not synced is lost as well."""
        self.disk = self.disk.after_crash(survival, random.Random(0))


class Process:
    """One broker, from its start to its end."""

    broker: Broker

    def __init__(self, machine: Machine, sim: Simulation) -> None:
        self._machine = machine
        self._sim = sim
        self.clock = SimClock(sim.loop, step_ms=machine.elapsed_ms)
        self._metadata = MemoryMetadataStore(machine.tree)

    async def start(self) -> None:
        self._bookie = await open_bookie(self._sim, self._machine.disk)
        runtime = self._sim.runtime(self._machine.disk, clock=self.clock)
        tables = inline_tables(["/table"], self._metadata, runtime)
        ledgers = LedgerManager(self._metadata, {"b": self._bookie}, runtime, tables)
        settings = Settings(**{"sealEnabled": False, **self._machine.settings})  # type: ignore[arg-type]
        self.broker = Broker(settings, runtime, self._metadata, ledgers, tables)
        await self.broker.start(ServiceUrls("pulsar://b:6650", "http://b:8080", "grpc://b:8815"))

    async def stop(self) -> None:
        """In order: what is in memory is stored."""
        await self.broker.close()
        await self._bookie.close()
        await self._metadata.close()

    def end(self) -> None:
        """It ended, in order or not."""
        self._metadata.vanish()
        self._machine.elapsed_ms += int(self._sim.loop.time() * 1000)
