"""What an entry costs the client of BookKeeper: processor time for three copies, and the rate.

    python -m benchmarks.bookkeeper_append [--entries N] [--size BYTES ...] [--run ENTRIES ...]

Starts ZooKeeper and three bookies on this machine, which share its processors, in a directory that
is removed afterwards. ``client us`` is the processor time of this process per entry, with all three
copies and their answers; ``bookies us`` is that of the three Java processes together. At most 4,000
entries, and 64 MiB of them, are under way. ``lone ms`` is the median of appends that wait for each
other.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.maven import class_path
from pulsark.errors import StorageError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.zookeeper.address import ZooKeeperAddress
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.processes.bookkeeper_server import LOCK, BookieServer
from pulsark.processes.zookeeper_server import ZooKeeperServer
from pulsark.runtime import Runtime
from pulsark.storage.bookkeeper.cluster import new_cluster
from pulsark.storage.bookkeeper.encoder import LedgerKeys
from pulsark.storage.bookkeeper.ids import LedgerIds
from pulsark.storage.bookkeeper.ledger_store import BookKeeperCluster, BookKeeperLedgerStore
from pulsark.storage.bookkeeper.registry import BookieRegistry
from pulsark.storage.ledger.manager import LedgerConfig, LedgerManager

ROOT = "/ledgers"
IN_FLIGHT, IN_FLIGHT_BYTES = 4000, 64 << 20
READ_BYTES = 256 << 20
COPIES = LedgerConfig(3, 3, 2)


class Confirmations:
    """Listens to a ledger, and lets the writer wait for it."""

    def __init__(self) -> None:
        self.last = -1
        self._reached: tuple[int, asyncio.Future[None]] | None = None

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        self.last = last_confirmed
        if self._reached is not None and last_confirmed >= self._reached[0]:
            future, self._reached = self._reached[1], None
            future.set_result(None)

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        raise error

    async def reach(self, entry_id: int) -> None:
        """Wait until an entry is confirmed."""
        if self.last < entry_id:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._reached = entry_id, future
            await future


async def write(ledgers: LedgerManager, entries: int, run: int, payload: bytes) -> None:
    """One ledger of so many entries, so many of them a turn of the loop."""
    confirmations = Confirmations()
    writer = await ledgers.create(COPIES, confirmations)
    in_flight = max(run, min(IN_FLIGHT, IN_FLIGHT_BYTES // len(payload)))
    for first in range(0, entries, run):
        await confirmations.reach(first + run - 1 - in_flight)
        writer.append([payload] * run)
        await asyncio.sleep(0)
    await writer.drained(everywhere=True)
    await writer.close()


async def lone(ledgers: LedgerManager, payload: bytes, count: int = 200) -> float:
    """The median of appends, one after the other, in milliseconds."""
    confirmations = Confirmations()
    writer = await ledgers.create(COPIES, confirmations)
    times = []
    for n in range(count):
        start = time.perf_counter()
        writer.append([payload])
        await confirmations.reach(n)
        times.append(time.perf_counter() - start)
    await writer.close()
    return statistics.median(times) * 1000


async def read(ledgers: LedgerManager, entries: int, payload: bytes) -> tuple[float, float]:
    """Entries a second and processor time of each, in microseconds, read back in batches."""
    confirmations = Confirmations()
    writer = await ledgers.create(COPIES, confirmations)
    for _ in range(0, entries, 100):
        writer.append([payload] * 100)
        await writer.drained()
    await writer.close()
    start, cpu, n = time.perf_counter(), time.process_time(), 0
    while n < entries:
        n += len(await ledgers.read(writer.ledger_id, n, entries - 1, 1 << 20))
    return (
        entries / (time.perf_counter() - start),
        (time.process_time() - cpu) / entries * 1e6,
    )


def seconds_of(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[LedgerManager, list[BookieServer]]]:
    """Ledgers on three new bookies."""
    server = ZooKeeperServer(directory / "zookeeper")
    server.start()
    path = f"{server.address}{ROOT}"
    bookies = [
        BookieServer(f"bookie-{n}", directory / f"bookie-{n}", path, class_path(LOCK), heap="512m")
        for n in range(3)
    ]
    runtime = Runtime()
    try:
        await server.ready()
        client = await ZooKeeperClient.connect(ZooKeeperAddress(server.address), runtime.clock)
        await new_cluster(client, ROOT)
        for bookie in bookies:
            bookie.start()
        registry = BookieRegistry(client, ROOT, LedgerKeys())
        for bookie in bookies:
            await bookie.ready()
        await registry.start()
        for bookie in bookies:
            await registry[bookie.bookie_id].ready()
        shared = BookKeeperCluster(client, ROOT, LedgerIds(client, ROOT), registry.ledger_keys)
        metadata = MemoryMetadataStore(MemoryTree())
        store = BookKeeperLedgerStore(shared, metadata)
        yield LedgerManager(metadata, registry, runtime, store=store, places=registry), bookies
        await registry.close()
        await client.close()
    finally:
        for bookie in bookies:
            bookie.process.kill()
        server.process.kill()


async def main(entries: int, sizes: list[int], runs: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with cluster(Path(directory)) as (ledgers, bookies):
            await write(ledgers, 20_000, 100, b"x" * 1024)  # Java is slow until it has compiled
            print("  size   run  entries/s  client us  bookies us")
            for size in sizes:
                payload = b"x" * size
                for run in runs:
                    count = max(run, min(entries, entries * run // 10))
                    start, cpu = time.perf_counter(), time.process_time()
                    theirs = sum(seconds_of(b.process.pid) for b in bookies)
                    await write(ledgers, count, run, payload)
                    rate = count / (time.perf_counter() - start)
                    client = (time.process_time() - cpu) / count * 1e6
                    theirs = (sum(seconds_of(b.process.pid) for b in bookies) - theirs) / count
                    print(f"{size:6} {run:5} {rate:10,.0f} {client:10.2f} {theirs * 1e6:11.1f}")
                rate, cpu = await read(ledgers, min(entries, 20_000, READ_BYTES // size), payload)
                print(f"{size:6}  read {rate:10,.0f} {cpu:10.2f}")
                print(f"{size:6}  lone ms {await lone(ledgers, payload):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--size", type=int, nargs="+", default=[1024, 100])
    parser.add_argument("--run", type=int, nargs="+", default=[100, 10, 1])
    options = parser.parse_args()
    uvloop.run(main(options.entries, options.size, options.run))
