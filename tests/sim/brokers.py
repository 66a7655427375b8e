"""Several brokers over one metadata store and one bookie, in one virtual time, with faults.

A broker may be cut off from the metadata store, lose its session and hear of that late, lose
answers of its writes, hear of changes late, be stopped or killed. What clients were promised is
checked in the end, and all the time that no bundle has two owners.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.dispatch.topics.lookup import LookupResult
from pulsark.errors import ClientError, PulsarkError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.topic_name import TopicName
from tests.sim.broker_faults import AWAY_SECONDS, BrokerFaults, ShakyStore, SlowBookie
from tests.sim.clock import SimClock
from tests.sim.owners import Leftovers, OwnedTree
from tests.sim.simulation import Simulation
from tests.support.broker_clients import BrokerInMemory, Client, Command
from tests.support.wire_frames import publish

HOUR_MS = 3_600_000
SETTINGS = {
    "keepAliveIntervalSeconds": 1_000_000,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "defaultRetentionTimeInMinutes": -1,
    "defaultRetentionSizeInMB": -1,
}
ANSWER_SECONDS = 30.0
SETTLED_SECONDS = 60
"""So long after all faults each topic is at one broker again, whomever one asks."""


class SimClient(Client):
    """Looks for answers less and less often, and not at all once its connection is closed."""

    async def take(self, *types: int, seconds: float = 1.0) -> pb.BaseCommand:
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + seconds, 0.0005
        while True:
            with suppress(TimeoutError):
                return await super().take(*types, seconds=0.0)
            if loop.time() >= end or self.transport.closed:
                raise TimeoutError(f"no {types} among {self.answers}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.25)


class Brokers:
    """All of them, and what clients were promised."""

    def __init__(self, sim: Simulation, seed: int, number: int, topics: int) -> None:
        self.rng = random.Random(seed)
        self.faults = BrokerFaults.drawn(self.rng)
        self._first = BrokerInMemory(
            sim,
            managedLedgerMaxEntriesPerLedger=self.rng.choice((2, 5, 1000)),
            brokerDeduplicationEnabled=self.rng.random() < 0.5,
            **SETTINGS,
        )
        self.bookie = SlowBookie(random.Random(self.rng.random()), self.faults.slow_bookie)
        self.tree = OwnedTree()
        self.tree.on_owners = self.check_owners
        self._first._tree, self._first.bookie = self.tree, self.bookie
        self._leftovers = Leftovers(sim.loop.time)
        self.nodes: list[BrokerInMemory] = []
        self.topics = [
            TopicName.parse(f"persistent://public/default/t{number}") for number in range(topics)
        ]
        self.brief = TopicName.parse("persistent://public/default/brief")
        """One that is deleted now and then, whole."""
        self._deleting = self._deletions = 0
        """How many are under way, and how many have begun."""
        self.confirmed: dict[TopicName, dict[tuple[int, int], bytes]] = {
            name: {} for name in (*self.topics, self.brief)
        }
        self.acknowledged: dict[TopicName, set[tuple[int, int]]] = {n: set() for n in self.topics}
        self._number = 0
        self._places = number
        self.clocks: dict[int, SimClock] = {}

    async def start(self) -> None:
        for place in range(self._places):
            self.nodes.append(await self._started(place))
        await asyncio.sleep(0.1)

    async def _started(self, place: int) -> BrokerInMemory:
        node = copy(self._first)
        shared = node._runtime.clock
        assert isinstance(shared, SimClock)
        clock = SimClock(shared.loop)
        node._runtime = replace(node._runtime, clock=clock)
        self.clocks[place] = clock
        if self.faults.weights["clock"]:
            self.step_clock(place)
        node.metadata = store = ShakyStore(self.tree, clock, random.Random(self.rng.random()))
        node.broker = store.broker = node._new_broker()
        self._leftovers.watch_loads(node.broker)
        node.broker.deletion._elsewhere = lambda: None  # no HTTP: clients ask the owner
        await node.broker.start(ServiceUrls(f"pulsar://b{place}:1", f"http://b{place}:2"))
        store.faults = self.faults
        return node

    def step_clock(self, place: int) -> None:
        """The time of day of a broker jumps, and is that of the others no more."""
        self.clocks[place].step_ms = self.rng.choice((-HOUR_MS, 0, 0, HOUR_MS))

    def store(self, place: int) -> ShakyStore:
        store = self.nodes[place].metadata
        assert isinstance(store, ShakyStore)
        return store

    def end_faults(self) -> None:
        """From now on all answers are heard."""
        self.faults = self.faults.over()
        self.bookie.seconds = 0.0
        for place in range(len(self.nodes)):
            self.store(place).faults = self.faults
            self.store(place).come_back()

    async def cut_off(self, place: int) -> None:
        """Let a broker hear nothing of the store for a while."""
        await self.store(place).cut_off(self.rng.choice(AWAY_SECONDS))

    def end_session(self, place: int) -> None:
        """The store ends a session, and says so: of a broker that cannot hear it, only in time."""
        if not self.store(place).cut:
            self.store(place).expire()

    async def restart(self, place: int, *, killed: bool) -> None:
        """Another process takes a broker's place."""
        node = self.nodes[place]
        if killed:
            self.store(place).come_back()
            node.metadata.expire()
        with suppress(PulsarkError, TimeoutError):
            async with asyncio.timeout(120):
                await node.broker.close()
        node.metadata.expire()
        for _ in range(20):
            with suppress(PulsarkError):
                self.nodes[place] = await self._started(place)
                return
        raise AssertionError("a broker does not start")

    # -- clients ---

    async def ask(self, place: int, name: TopicName) -> tuple[int, LookupResult]:
        """Look a topic up as a client does, from some broker on; where it was answered."""
        authoritative = False
        for _ in range(20):
            node = self.nodes[place]
            found = await node.broker.lookup.find(name, authoritative=authoritative)
            if found.is_here or found.broker_id == node.broker.registry.own_id:
                assert node.metadata.session.is_sure, "a broker that may own nothing says 'here'"
            if not found.is_redirect:
                return place, found
            authoritative = True
            place = self.place_of(found)
        raise ClientError(500, f"{name} is sent round in circles")

    def place_of(self, found: LookupResult) -> int:
        return int(found.broker_id.removeprefix("b").partition(":")[0])

    async def publish(
        self, place: int, name: TopicName, *, blindly: bool = False, often: int = 1
    ) -> None:
        """Some entries by a client of its own, which gives up when anything goes wrong.

        ``blindly``: it asks nobody, as one that knows the owner from before.
        """
        begun = -1 if self._deleting else self._deletions
        with suppress(PulsarkError, TimeoutError):
            if not blindly:
                place = self.place_of((await self.ask(place, name))[1])
            client = SimClient(self.nodes[place])
            self._number += 1
            producer = f"p{self._number}"
            try:
                success = await client.open_producer(str(name), producer, seconds=ANSWER_SECONDS)
                if isinstance(success, int):
                    return
                for number in range(often):
                    if number:
                        await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.3, 2.0)))
                    self._number += 1
                    payload = b"%d" % self._number
                    client.send_bytes(publish(1, number, payload, producer_name=producer))
                    kinds = Command.SEND_RECEIPT, Command.SEND_ERROR, Command.CLOSE_PRODUCER
                    answer = await client.take(*kinds, seconds=ANSWER_SECONDS)
                    if answer.type != Command.SEND_RECEIPT:
                        return
                    if name != self.brief or begun == self._deletions:
                        found_id = answer.send_receipt.message_id
                        self.confirmed[name][found_id.ledgerId, found_id.entryId] = payload
            finally:
                client.hang_up()

    async def delete(self, place: int) -> None:
        """The brief topic. What is published once it is over stays, whatever came of it."""
        self._deletions += 1
        self._deleting += 1
        self.confirmed[self.brief].clear()
        try:
            with suppress(PulsarkError, TimeoutError):
                node = self.nodes[self.place_of((await self.ask(place, self.brief))[1])]
                await node.broker.deletion.delete_topic(self.brief, force=True)
        finally:
            self._deleting -= 1

    async def acknowledge(self, place: int, name: TopicName) -> None:
        """Some of what there is, by a consumer of its own."""
        with suppress(PulsarkError, TimeoutError):
            client = SimClient(self.nodes[self.place_of((await self.ask(place, name))[1])])
            try:
                if await client.subscribe(str(name), "work") != 0:
                    return
                await asyncio.sleep(0.01)
                for each in (await client.deliveries())[:3]:
                    found = each.message.message_id
                    position = found.ledgerId, found.entryId
                    command = client.ack_command(position)
                    command.ack.request_id = 1_000_000
                    client.send(command)
                    answer = await client.take(Command.ACK_RESPONSE, seconds=ANSWER_SECONDS)
                    if not answer.ackResponse.HasField("error"):
                        self.acknowledged[name].add(position)
            finally:
                client.hang_up()

    async def split(self, place: int, name: TopicName, *, keep: bool) -> None:
        """Have a bundle split by its broker, if there is room for a few more."""
        with suppress(PulsarkError):
            broker = self.nodes[self.place_of((await self.ask(place, name))[1])].broker
            bundle = await broker.ownership.bundle_named(name)
            algorithm = self.rng.choice(("range_equally_divide", "topic_count_equally_divide"))
            edges = await broker.bundle_split.edges(bundle, algorithm)
            if edges:
                await broker.bundle_split.split(bundle, edges, keep=keep)

    async def change(self, place: int) -> None:
        """A setting of all brokers, or which of them may have the topics' bundles."""
        broker = self.nodes[place].broker
        self._number += 1
        happens = self.rng.random()
        with suppress(PulsarkError, TimeoutError):
            if happens < 0.4:
                await broker.dynamic_settings.set("maxTenants", f"{self._number}")
            elif happens < 0.8:
                only = self.rng.sample(range(self._places), self._places - 1)
                await broker.resources.isolation.put(
                    broker.settings.clusterName, "policy", _isolated([f"b{n}:.*" for n in only])
                )
            else:
                await broker.resources.isolation.delete(broker.settings.clusterName, "policy")

    # -- what is checked ---

    def check_owners(self) -> None:
        """No topic is two brokers' at any moment, or in two bundles, and none is kept for long."""
        self._leftovers.look(self.tree, [self.store(place) for place in range(len(self.nodes))])
        owned = sorted(
            (*(int(edge, 16) for edge in bundle.rpartition("/")[2].split("_")), place)
            for place, node in enumerate(self.nodes)
            for bundle in node.broker.ownership.owned()
            if node.broker.ownership.has(bundle)
        )
        for (_, high, place), (low, _, other) in pairwise(owned):
            assert high <= low, f"what is after {low:#x} is of {place} and {other}"

    async def check(self) -> None:
        """Once all faults are over: all brokers say the same, and nothing confirmed is gone."""
        self.end_faults()
        await asyncio.sleep(4)
        for place, node in enumerate(self.nodes):
            if node.metadata.session.has_ended:
                await self.restart(place, killed=True)
        await asyncio.sleep(40)
        self.check_owners()
        assert len({node.broker.settings.maxTenants for node in self.nodes}) == 1
        for name in self.confirmed:
            places = self.rng.sample(range(len(self.nodes)), len(self.nodes))
            for _ in range(SETTLED_SECONDS):
                answers = [await self._settled(place, name) for place in places]
                if len({found.broker_id for found in answers}) == 1:
                    break
                await asyncio.sleep(1)  # it moves just now, for a policy
            assert len({found.broker_id for found in answers}) == 1, f"{name}: {answers}"
            await self._check_entries(self.nodes[self.place_of(answers[0])], name)
        self.check_owners()

    async def _settled(self, place: int, name: TopicName) -> LookupResult:
        for _ in range(SETTLED_SECONDS):
            with suppress(ClientError):
                return (await self.ask(place, name))[1]
            await asyncio.sleep(1)
        raise AssertionError(f"{name} is nobody's")

    async def _check_entries(self, node: BrokerInMemory, name: TopicName) -> None:
        client = SimClient(node)
        assert await client.subscribe(str(name), "check") == 0
        await asyncio.sleep(1)
        found = {
            (each.message.message_id.ledgerId, each.message.message_id.entryId): each.payload
            for each in await client.deliveries()
        }
        expected = self.confirmed[name]
        assert {place: found.get(place) for place in expected} == expected, f"{name} has lost some"
        assert await client.subscribe(str(name), "work", consumer_id=2) == 0
        await asyncio.sleep(1)
        again = {
            (each.message.message_id.ledgerId, each.message.message_id.entryId)
            for each in await client.deliveries()
        }
        assert not again & self.acknowledged.get(name, set()), (
            f"{name} forgets what was acknowledged"
        )
        client.hang_up()


def _isolated(primary: list[str]) -> dict[str, Any]:
    """A policy for all namespaces of ``public``."""
    failover = {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "100"},
    }
    return {
        "namespaces": ["public/.*"],
        "primary": primary,
        "secondary": [],
        "auto_failover_policy": failover,
    }
