"""Compactions, seals and bulk publishes that are cut off at random moments.

A topic is unloaded while they are under way, callers are cancelled, and now and then the metadata
store does not answer, having done what it was asked or not. After each life everything that was
confirmed is there: as a whole where it was not trimmed, and of each key the latest message in the
compacted form. ``SEEDS=5000 make sim`` runs longer, ``SEED=17 make sim`` only that seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from pulsark.dispatch.model.entry import Entry, stored_entry
from pulsark.dispatch.topic.compacted_view import CompactedView
from pulsark.dispatch.topic.topic import Topic
from pulsark.errors import PulsarkError
from pulsark.metadata.paths import managed_ledger_path
from pulsark.storage.managed_ledger.managed_ledger import read_ledgers
from pulsark.storage.table.staging.staged_ledger import STAGING
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry, parse_entry
from pulsark.wire.position import EARLIEST, Position
from tests.sim.metadata import UnsureStore
from tests.sim.simulation import Simulation
from tests.support.broker_clients import NAME, BrokerInMemory
from tests.support.staged import stage

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = 1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "24"))
GROUPS = 6
LIVES = 3
STEPS = 40
KEYS = 4
UNANSWERED = 0.05
"""Part of the writes of topics that get no answer."""

SETTINGS = {
    "sealEnabled": True,
    "sealFreshnessSeconds": 5,
    "managedLedgerMaxEntriesPerLedger": 5,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "retentionCheckIntervalInSeconds": 100_000,
    "brokerDeleteInactiveTopicsEnabled": False,
}


class Life:
    """What one seed does, and what it knows."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self.rng = random.Random(seed)
        self.broker = BrokerInMemory(sim, **SETTINGS)
        self.store = UnsureStore(self.broker._tree, self.rng, 0.0, "/managed-ledgers")
        self.broker.metadata = self.store
        self.broker.broker = self.broker._new_broker()
        self.sent: list[Entry] = []
        self.bulk: dict[bytes, bool] = {}
        """By entry: whether the publish was answered."""
        self.works: list[asyncio.Task[Any]] = []
        self.number = 0

    async def run(self) -> None:
        await self.broker.start()
        # From the first compaction on nothing is trimmed that is not in the compacted form.
        await (await self.topic()).compactor.run()
        for _ in range(LIVES):
            self.store.part = UNANSWERED
            for _ in range(STEPS):
                with suppress(PulsarkError):
                    await self.step()
                await asyncio.sleep(self.rng.choice((0, 0, 0.0003, 0.002, 0.02)))
            self.store.part = 0.0
            await asyncio.gather(*self.works, return_exceptions=True)
            self.works.clear()
            await self.check()
        await self.broker.broker.close()

    async def topic(self) -> Topic:
        """The topic, of which only the compacted form is kept."""
        topic = await self.broker.broker.topics.load(NAME, create=True)
        topic.policies = replace(
            topic.policies,
            retention_minutes=0,
            retention_mb=0,
            table_retention_minutes=0,
            table_retention_mb=0,
        )
        return topic

    async def step(self) -> None:
        topic = await self.topic()
        what = self.rng.random()
        if what < 0.35:
            for _ in range(self.rng.randint(1, 5)):
                entry = stored_entry(EARLIEST, self.entry(f"k{self.rng.randrange(KEYS)}"))
                self.sent.append(entry)
                topic.publish(entry)
        elif what < 0.55:
            topic.compactor.start()
        elif what < 0.65:
            sealing = self.broker.broker.sealing
            self.start(sealing.seal(NAME, [topic], everything=self.rng.random() < 0.5))
        elif what < 0.72:
            self.start(self.publish())
        elif what < 0.82:
            with suppress(asyncio.CancelledError):
                await topic.cursors.sync()
                await topic.retention.trim()
        elif what < 0.9:
            await self.broker.broker.topics.unload(NAME)
        elif self.works:
            self.rng.choice(self.works).cancel()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        self.works.append(asyncio.ensure_future(work))

    def entry(self, key: str) -> bytes:
        self.number += 1
        head = pb.MessageMetadata(
            producer_name="p", sequence_id=self.number, publish_time=1, partition_key=key
        )
        return build_entry(head, b"%d" % self.number)

    async def publish(self) -> None:
        """Two messages with keys that nobody else has."""
        data = [self.entry(f"bulk{self.number}") for _ in range(2)]
        self.bulk |= dict.fromkeys(data, False)
        number, publishing = self.number, self.broker.broker.bulk_publishing
        staging = await publishing.staging(NAME)
        roots = [directory.removesuffix(f"/{STAGING}") for directory in staging.directories]
        staged = [stage(self.broker.broker.runtime.disk, roots, -1, data, f"n{number}")]
        # Of a query of its own: what comes after a later number of the same query is done already.
        await publishing.publish(NAME, staging.topic_id, 0, f"q{number}", number, staged)
        self.bulk |= dict.fromkeys(data, True)

    async def check(self) -> None:
        await asyncio.sleep(5)  # what stopped is unloaded
        await self.broker.broker.topics.unload(NAME)
        topic = await self.topic()
        await asyncio.sleep(1)
        ledger = topic.ledger
        whole = await self.read(topic, compacted=False)
        for entry in self.sent:
            if entry.position > ledger.record.trimmed and entry.position != EARLIEST:
                assert whole.get(entry.position) == entry.data, entry.position
        left = await self.read(topic, compacted=True)
        known = {entry.data for entry in self.sent} | set(self.bulk)
        assert set(left.values()) | set(whole.values()) <= known
        latest = {parse_entry(data).metadata.partition_key: at for at, data in left.items()}
        for entry in self.sent:
            key = parse_entry(entry.data).metadata.partition_key
            assert entry.position <= latest.get(key, EARLIEST), (entry.position, key)
        there = set(left.values())
        assert all(data in there for data, answered in self.bulk.items() if answered)
        await self.check_ledgers()

    async def read(self, topic: Topic, *, compacted: bool) -> dict[Position, bytes]:
        view, position = CompactedView(topic.entries), EARLIEST
        found: dict[Position, bytes] = {}
        while position <= topic.ledger.last_confirmed:
            read = view.stored if compacted else topic.ledger.read
            stored = await read(position, 50, 1 << 20)
            if not stored:
                break
            found |= dict(stored)
            last = stored[-1][0]
            position = Position(last.ledger_id, last.entry_id + 1)
        return found

    async def check_ledgers(self) -> None:
        """No bookie has entries of the topic that nobody lists."""
        found = await read_ledgers(managed_ledger_path(NAME), self.store)
        assert found is not None
        record, ledgers = found
        compacted = -1 if record.compacted is None else record.compacted.ledger_id
        for ledger_id in self.broker.bookie.ledger_ids():
            known = await self.store.get(f"/ledgers/{ledger_id}")
            of_topic = known is not None and managed_ledger_path(NAME).encode() in known.value
            if of_topic and self.broker.bookie.entries(ledger_id):
                assert ledger_id in ledgers or ledger_id == compacted, ledger_id


@pytest.mark.parametrize("group", range(min(GROUPS, SEEDS)))
def test_what_is_cut_off_loses_nothing(group: int) -> None:
    for seed in range(FIRST_SEED + group, FIRST_SEED + SEEDS, GROUPS):
        with Simulation(seed) as sim:
            sim.run(Life(sim, seed).run())
