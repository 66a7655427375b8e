"""A compacted ledger by the positions of its topic, against a plain list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import StorageError
from pulsark.storage.ledger.metadata import LedgerConfig
from pulsark.storage.managed_ledger.compacted_ledger import CompactedLedger, CompactedLedgerWriter
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry
from pulsark.wire.position import EARLIEST, LATEST, Position
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, simulate

ONE = LedgerConfig(1, 1, 1)
places = st.builds(Position, st.integers(0, 4), st.integers(0, 6))
limits = st.tuples(st.integers(1, 5), st.sampled_from([1, 100, 10_000]))


def entry(ms: int) -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=ms, publish_time=ms)
    return build_entry(head, b"x" * ms)


async def written(cluster: Cluster, entries: list[tuple[Position, bytes]]) -> CompactedLedger:
    manager = cluster.manager()
    (ledger_id,) = await manager.new_ids(1)
    writer = await CompactedLedgerWriter.open(manager, ONE, ledger_id)
    assert writer.ledger_id == ledger_id
    for start in range(0, len(entries), 3):
        await writer.append(entries[start : start + 3])
    await writer.append([])
    await writer.close()
    return CompactedLedger(cluster.manager(), ledger_id)


@given(st.sets(places, max_size=20), st.lists(st.tuples(places, limits), max_size=6))
def test_reads_give_what_a_plain_list_has(
    positions: set[Position], asked: Sequence[tuple[Position, tuple[int, int]]]
) -> None:
    entries = [(position, entry(number)) for number, position in enumerate(sorted(positions))]

    async def main(sim: Simulation) -> None:
        ledger = await written(Cluster(sim), entries)
        assert await ledger.last() == (entries[-1] if entries else None)
        count, size = await ledger.extent()
        assert count == len(entries)
        assert size == sum(16 + len(data) for _, data in entries)
        for position, (most, size) in [*asked, (EARLIEST, (9, 9999)), (LATEST, (1, 1))]:
            rest = [each for each in entries if each[0] >= position]
            found = await ledger.read(position, most, size)
            assert found == rest[: len(found)]
            assert len(found) <= most
            assert bool(found) is bool(rest)
            if size == 10_000:
                assert len(found) == min(most, len(rest))
            if found:  # from where it ended
                after, entry_id = found[-1][0]
                following = await ledger.read(Position(after, entry_id + 1), 99, 10_000)
                assert following == rest[len(found) :]
        for ms in range(len(entries) + 2):
            later = [position for number, (position, _) in enumerate(entries) if number >= ms]
            assert await ledger.find_by_publish_time(ms) == (later[0] if later else None)

    simulate(main)


def test_an_append_that_fails_says_so() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim)
        manager = cluster.manager()
        (ledger_id,) = await manager.new_ids(1)
        writer = await CompactedLedgerWriter.open(manager, ONE, ledger_id)
        await writer.append([(Position(0, 0), entry(0))])
        cluster.all[0].down = True
        for number in (1, 2):  # also what comes after the failure
            with pytest.raises(StorageError):
                await asyncio.wait_for(writer.append([(Position(0, number), entry(1))]), 3600)
        writer.abandon()

    simulate(main)
