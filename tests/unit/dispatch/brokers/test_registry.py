"""Brokers hear of each other, and one of them leads."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from pulsark.dispatch.brokers.leader import Leader
from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import MetadataError
from pulsark.metadata import settled
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import BROKERS, LEADER, broker_path
from pulsark.metadata.store import Versioned
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import Fate, FaultyStore


def broker(number: int, instance: str = "") -> LiveBroker:
    urls = ServiceUrls(f"pulsar://b{number}:6650", f"http://b{number}:8080", flight_tls="x")
    return LiveBroker(
        urls.broker_id, instance or f"i{number}", urls, 17, "1.0", load=LoadReport(0.5)
    )


async def turns() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


class One:
    """A broker's registry and leader over a session of its own."""

    def __init__(self, tree: MemoryTree, number: int) -> None:
        self.store = FaultyStore(tree)
        self.own = broker(number)
        self.registry = BrokerRegistry(self.store)
        self.leader = Leader(self.store)

    async def start(self) -> One:
        await self.registry.announce(self.own)
        await self.leader.start(self.own)
        return self


def test_brokers_know_each_other() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one = await One(tree, 1).start()
        assert one.registry.is_alone
        assert one.registry.own == one.own
        two = await One(tree, 2).start()
        assert two.registry.live == {"b1:8080": one.own, "b2:8080": two.own}
        await turns()
        assert one.registry.live == two.registry.live
        assert not one.registry.is_alone
        await one.registry.report(LoadReport(0.7, 3))
        await one.registry.report(LoadReport(0.8, 4))
        await turns()
        told = two.registry.get("b1:8080")
        assert told is not None
        assert told.load == LoadReport(0.8, 4)
        one.store.expire()
        await turns()
        assert two.registry.live == {"b2:8080": two.own}
        assert two.registry.is_alone

    asyncio.run(scenario())


def test_a_broker_that_retires_is_gone_at_once_and_stays_away() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = await One(tree, 1).start(), await One(tree, 2).start()
        await one.registry.retire()
        await one.registry.report(LoadReport(0.9))
        await turns()
        assert list(two.registry.live) == ["b2:8080"]

    asyncio.run(scenario())


@pytest.mark.parametrize("after", range(5))
def test_so_is_one_that_is_just_telling_its_load(after: int) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = await One(tree, 1).start(), await One(tree, 2).start()
        telling = asyncio.create_task(one.registry.report(LoadReport(0.9)))
        for _ in range(after):
            await asyncio.sleep(0)
        await one.registry.retire()
        await telling
        await turns()
        assert one.registry.own is None
        assert list(two.registry.live) == ["b2:8080"]

    asyncio.run(scenario())


def test_so_is_one_whose_last_report_was_not_answered() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = await One(tree, 1).start(), await One(tree, 2).start()
        one.store.fates.append(Fate.LATE)
        await one.registry.report(LoadReport(0.9))
        await turns()
        await one.registry.retire()
        await turns()
        assert list(two.registry.live) == ["b2:8080"]

    asyncio.run(scenario())


def test_what_was_not_told_is_looked_at_again() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = await One(tree, 1).start(), await One(tree, 2).start()
        await turns()
        one.store.lose_watches()
        await two.registry.report(LoadReport(0.9))
        await One(tree, 3).start()
        await turns()
        assert len(one.registry.live) == 2
        one.store.watch_again()
        await turns()
        assert one.registry.live == two.registry.live
        assert len(one.registry.live) == 3

    asyncio.run(scenario())


def test_a_former_process_is_in_nobodys_way() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        await One(tree, 1).start()
        again = One(tree, 1)
        again.own = broker(1, "later")
        await again.start()
        assert again.registry.live == {"b1:8080": again.own}

    asyncio.run(scenario())


def test_a_broker_of_the_same_name_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one = await One(tree, 1).start()
        two = await One(tree, 2).start()
        for instance in ("another", "third"):
            same = One(tree, 1)
            same.own = broker(1, instance)
            await same.start()
            for _ in range(3):
                await same.registry.report(LoadReport(0.7))
                await turns()
            (error,) = [each for each in caplog.messages if instance in each]
            assert error.startswith(
                f"another process ({instance}) has announced itself as broker b1:8080"
            )
            assert "advertisedAddress" in error
            caplog.clear()
            # The next one tells this one, too.
            one.registry.close()
            one = same
        await two.registry.retire()
        assert not caplog.messages

    asyncio.run(scenario())


def test_a_value_that_nobody_understands_is_left_out() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one = await One(tree, 1).start()
        for number, value in enumerate((b"", b"{}", b"[]", b'{"brokerId": 1}')):
            tree.put(broker_path(f"odd-{number}"), value, -2, None)
        await turns()
        assert list(one.registry.live) == ["b1:8080"]
        await One(tree, 2).start()
        await turns()
        assert len(one.registry.live) == 2

    asyncio.run(scenario())


UNHEARD = (Fate.NEVER, Fate.UNHEARD, Fate.LATE)


@pytest.mark.parametrize("fates", list(itertools.product(UNHEARD, repeat=2)), ids=str)
def test_writes_that_nobody_answers_do_no_harm(
    monkeypatch: pytest.MonkeyPatch, fates: tuple[Fate, ...]
) -> None:
    monkeypatch.setattr(settled, "_RETRY_SECONDS", 0)

    async def scenario() -> None:
        tree = MemoryTree()
        one = One(tree, 1)
        one.store.fates.extend(fates)
        await one.registry.announce(one.own)
        one.store.fates.extend(fates)
        await one.leader.start(one.own)
        await turns()
        assert one.leader.is_here
        for load in (LoadReport(0.1), LoadReport(0.2), LoadReport(0.3)):
            one.store.fates.extend(fates[:1] if load.utilisation < 0.3 else ())
            await one.registry.report(load)
            await turns()
        await one.registry.report(LoadReport(0.4))
        await turns()
        assert tree.children(BROKERS) == ["b1:8080"]
        found = one.registry.get("b1:8080")
        assert found is not None
        assert found.load == LoadReport(0.4)

    asyncio.run(scenario())


def test_there_is_one_leader_and_the_next_when_it_goes() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        brokers = [One(tree, number) for number in range(4)]
        await asyncio.gather(*(each.start() for each in brokers))
        await turns()
        for left in (4, 3, 2, 1):
            leaders = [each for each in brokers if each.leader.is_here]
            assert len(leaders) == 1
            name = leaders[0].own.broker_id
            assert [each.leader.broker_id for each in brokers] == [name] * left
            leaders[0].store.expire()
            assert not leaders[0].leader.is_here
            brokers.remove(leaders[0])
            await turns()
        assert tree.get(LEADER) is None

    asyncio.run(scenario())


def test_a_broker_without_a_session_is_not_announced() -> None:
    async def scenario() -> None:
        store = MemoryMetadataStore(MemoryTree())
        store.expire()
        with pytest.raises(MetadataError):
            await BrokerRegistry(store).announce(broker(1))

    asyncio.run(scenario())


def failing(one: One, path: str, times: int) -> None:
    """The store does not answer the next reads of a path."""
    get, children = one.store.get, one.store.children

    def check(asked: str) -> None:
        nonlocal times
        if times and asked == path:
            times -= 1
            raise MetadataError("the store does not answer")

    async def get_or_fail(asked: str) -> Versioned | None:
        check(asked)
        return await get(asked)

    async def children_or_fail(asked: str) -> list[str]:
        check(asked)
        return await children(asked)

    one.store.get, one.store.children = get_or_fail, children_or_fail  # type: ignore[method-assign]


def test_who_lives_and_who_leads_is_read_again_until_it_is_known() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        one, two = await One(tree, 1).start(), await One(tree, 2).start()
        assert one.leader.is_here
        failing(two, LEADER, 2)
        failing(two, broker_path("b1:8080"), 2)
        tree.put(LEADER, b"{", -2, one.store)
        await asyncio.sleep(4)
        assert (two.leader.broker_id, list(two.registry.live)) == ("", ["b1:8080", "b2:8080"])
        one.store.expire()
        failing(two, LEADER, 2)
        failing(two, broker_path("b1:8080"), 2)
        await asyncio.sleep(8)
        assert two.leader.is_here
        assert two.registry.is_alone
        two.leader.close()
        two.registry.close()

    with Simulation() as sim:
        sim.run(scenario())


def test_a_broker_that_cannot_know_of_others_does_not_start() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        await One(tree, 1).start()
        two = One(tree, 2)
        failing(two, BROKERS, 1)
        with pytest.raises(MetadataError, match="which brokers are alive"):
            await two.start()

    asyncio.run(scenario())
