"""Tables in tests: entries to seal, and what every root of a table must be like."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path

import google_crc32c

from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import table_path
from pulsark.runtime import OsDisk, Runtime
from pulsark.schemas.definition import SchemaData
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.storage.managed_ledger.erasure import nothing
from pulsark.storage.roots.root_files import RootFiles
from pulsark.storage.table.attach import TableOwner
from pulsark.storage.table.files.record import DataFile, RowChange, SealedLedger, table_directory
from pulsark.storage.table.files.seal import read_whole, seal
from pulsark.storage.table.files.seal_range import SealRange
from pulsark.storage.table.log.checkpoint import files_at
from pulsark.storage.table.log.delta_log import DeltaLog, attach_number, files_of
from pulsark.storage.table.log.folding import forget, make_base
from pulsark.storage.table.log.missing_statistics import missing_statistics
from pulsark.storage.table.process.process import Entries
from pulsark.storage.table.process.reader import TableReader
from pulsark.storage.table.table_repair import Repair
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch
from pulsark.wire.entry import build_entry
from pulsark.wire.topic_name import TopicName
from tests.support.client_view import client_view
from tests.support.inline_table import inline_tables

NOW = 1_700_000_000_000

TOPIC = TopicName.parse("persistent://ten=ant/default/t")
TABLE_ID = "0123456789abcdef0123456789abcdef"

Ledgers = Mapping[int, Sequence[bytes]]
"""Entries by ledger id."""


def entry(i: int, messages: int = 0, value: bytes = b"") -> bytes:
    """A message sent alone, or a batch of ``messages``."""
    head = pb.MessageMetadata(producer_name="p", sequence_id=i, publish_time=NOW + i)
    if not messages:
        head.partition_key = f"k{i}"
        head.properties.add(key="n", value=str(i))
        return build_entry(head, value or b"value %d" % i)
    members: list[tuple[pb.SingleMessageMetadata, bytes]] = []
    for j in range(messages):
        one = pb.SingleMessageMetadata(payload_size=0, sequence_id=i + j, partition_key=f"k{j}")
        one.event_time = NOW + 60_000 + j
        one.properties.add(key="n", value=str(i))
        members.append((one, value or b"value %d.%d" % (i, j)))
    return build_batch(head, members, pb.LZ4)


def entries(count: int, seed: int = 0) -> list[bytes]:
    """Batches and messages sent alone, mixed."""
    rng = random.Random(seed)
    return [entry(i, rng.choice([0, 0, 1, 3])) for i in range(count)]


def attached_files(disk: RootFiles, directory: str) -> tuple[int, list[DataFile]]:
    """What a root's log says: its last attach and its files. Asserts that the log is sound."""
    log = DeltaLog(disk, directory)
    first = log.first()
    versions = [version for version in log.versions() if version >= first]
    assert versions == list(range(first, first + len(versions)))
    files: dict[str, DataFile] = {}
    last = 0
    if first:
        files = {file.path: file for file in files_at(disk, directory, first)}
        last = attach_number(log.read(first)) or 0
        versions = versions[1:]
    for version in versions:
        actions = log.read(version)
        number = attach_number(actions)
        if number is not None:
            assert number == last + 1, f"attach {number} follows {last}"
            last = number
        for file in files_of(actions):
            assert file.path not in files
            files[file.path] = file
        for action in actions:
            if "remove" in action:
                del files[action["remove"]["path"]]
    return last, sorted(files.values(), key=lambda f: (f.ledger_id, f.first_entry_id))


def check_files(disk: RootFiles, directory: str, files: Sequence[DataFile]) -> None:
    """Assert that files are there with their bytes."""
    for file in files:
        data = read_whole(disk, f"{directory}/{file.path}")
        assert len(data) == file.size
        assert google_crc32c.value(data) == file.crc32c


def check_entries(
    disk: RootFiles, directory: str, ledgers: Mapping[int, SealedLedger], originals: Ledgers
) -> None:
    """Assert that what is sealed is what was written, to a client's eye."""
    reader = TableReader([directory], disk)
    for ledger_id, sealed in ledgers.items():
        found: list[tuple[int, bytes]] = []
        while len(found) <= sealed.through:
            found += reader.read(sealed, len(found), sealed.through, 200)
        assert [entry_id for entry_id, _ in found] == list(range(sealed.through + 1))
        for (_, again), original in zip(found, originals[ledger_id], strict=False):
            assert client_view(again) == client_view(original)
    reader.close()


class GrowingTable:
    """A table on one root that grows by attaches, of entries with two messages."""

    def __init__(self, root: Path | str, files: RootFiles | None = None) -> None:
        self.files: RootFiles = files or OsDisk()
        self.directory = table_directory(str(root), TOPIC, TABLE_ID)
        self._tree = MemoryTree()
        self._attaches = 0

    def attach(self, partition: int, ledger_id: int, first: int, count: int) -> None:
        asyncio.run(self._attach(partition, ledger_id, first, count))

    def attach_entries(
        self, entries: Sequence[bytes], first: int, versions: Sequence[tuple[bytes, SchemaData]]
    ) -> None:
        """Entries of ledger 5 whose messages carry versions of a schema."""

        async def main() -> None:
            owner = await self._owner()
            self._attaches += 1
            values = ValueSchemas.next(
                owner.record.value if owner.record.attached else None, versions
            )
            files = seal(
                enumerate(entries, first),
                0,
                5,
                [self.directory],
                self.files,
                f"n{self._attaches}",
                values=values,
            )
            await owner.attach(files, value=values.kind)

        asyncio.run(main())

    def rewrite(self, ledger_id: int, erased: Collection[int] = ()) -> None:
        """Merge the files of a ledger; of entries that are ``erased``, no message stays."""

        async def main() -> None:
            owner = await self._owner()
            self._attaches += 1
            sealed = await owner.sealed(ledger_id)
            assert sealed is not None
            entries = [
                (i, nothing(NOW) if i in erased else entry(i, 2)) for i in range(sealed.through + 1)
            ]
            place = (sealed.partition, ledger_id, [self.directory], self.files)
            files = seal(entries, *place, f"n{self._attaches}")
            change = RowChange.ERASE if erased else RowChange.MERGE
            await owner.attach(files, sealed.files, change=change)

        asyncio.run(main())

    def repair(self) -> Repair:
        """Repair the table, whose files are all there."""

        async def main() -> Repair:
            def entries_of(wanted: SealRange) -> AsyncIterator[Entries]:
                raise AssertionError("all files are there")

            root, repair = str(Path(self.directory).parents[2]), Repair()
            tables = inline_tables([root], MemoryMetadataStore(self._tree), Runtime())
            await tables.repair(TOPIC, TABLE_ID, entries_of, 1 << 20, repair, give_up=False)
            await tables.close()
            return repair

        return asyncio.run(main())

    def remove(self, ledger_id: int) -> None:
        async def main() -> None:
            owner = await self._owner()
            sealed = await owner.sealed(ledger_id)
            assert sealed is not None
            await owner.attach([], sealed.files)

        asyncio.run(main())

    def state(self, most: int = 100) -> int:
        """Put statistics that the log lacks into it; how often there was more to be done."""

        async def main() -> int:
            owner, steps = await self._owner(), 0
            while not owner.record.stated:
                found = missing_statistics(self.files, owner.record, 1 << 20, most)
                await owner.state(found.files, owner.record.attached, found.indexed)
                steps += found.indexed is None
            return steps

        return asyncio.run(main())

    def fold(self, version: int) -> None:
        """Let the log begin with a checkpoint of a version."""
        make_base(self.files, self.directory, version)
        assert forget(self.files, self.directory, version, 1000)

    async def _attach(self, partition: int, ledger_id: int, first: int, count: int) -> None:
        owner = await self._owner()
        self._attaches += 1
        entries = [(i, entry(i, 2)) for i in range(first, first + count)]
        files = seal(
            entries, partition, ledger_id, [self.directory], self.files, f"n{self._attaches}"
        )
        await owner.attach(files)

    async def _owner(self) -> TableOwner:
        runtime = Runtime()
        return await TableOwner.open(
            table_path(TOPIC),
            TABLE_ID,
            [self.directory],
            MemoryMetadataStore(self._tree),
            runtime,
            runtime.new_worker("table"),
            files=self.files,
        )
