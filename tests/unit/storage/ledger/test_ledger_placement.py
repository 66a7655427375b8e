"""Which bookies get the copies of a ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import StorageError, StorageFullError
from pulsark.storage.ledger.bookies import (
    FULL_PROBE_SECONDS,
    FULL_REMEMBERED_SECONDS,
    LedgerBookies,
)
from pulsark.storage.ledger.metadata import LedgerConfig
from pulsark.storage.ledger.placement import (
    QUARANTINE_SECONDS_MAX,
    SUSPECT_SECONDS,
    Failures,
    first_failure,
    spread,
)
from tests.sim.simulation import Simulation
from tests.support.ledgers import Cluster, simulate


@dataclass
class Racks:
    """Places that a test knows."""

    racks: dict[str, str] = field(default_factory=dict)
    read_only: set[str] = field(default_factory=set)

    def is_writable(self, bookie_id: str) -> bool:
        return bookie_id not in self.read_only

    def rack(self, bookie_id: str) -> str:
        return self.racks.get(bookie_id, "")


racks = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.sampled_from("xyz"))


@given(racks, st.sets(st.sampled_from("abcdef")), st.integers(1, 6))
def test_copies_are_spread_over_racks_and_suspects_come_last(
    places: dict[str, str], suspects: set[str], count: int
) -> None:
    chosen = spread(list(places), count, places.__getitem__, suspects.__contains__)
    assert len(chosen) == len(set(chosen)) == min(count, len(places))
    good = [name for name in places if name not in suspects]
    if len(chosen) <= len(good):
        assert not suspects & set(chosen)
        used = Counter(places[name] for name in chosen)
        room = Counter(places[name] for name in good)
        for rack, uses in used.items():
            assert all(used[o] >= uses - 1 or used[o] == room[o] for o in room), rack
    else:
        assert set(good) <= set(chosen)


def test_neighbours_are_in_different_racks() -> None:
    places = {"a": "x", "b": "x", "c": "x", "d": "y", "e": "y"}
    chosen = spread(list(places), 4, places.__getitem__, lambda _: False)
    assert [places[name] for name in chosen] == ["x", "y", "x", "y"]


def test_a_spare_is_in_a_rack_that_has_none_of_the_others() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 6)
        names = list(cluster.bookies)
        places = Racks(dict(zip(names, "xxyyzz", strict=True)))
        bookies = LedgerBookies(cluster.bookies, cluster.runtime, places)
        for _ in range(20):
            assert (
                len({places.rack(b.bookie_id) for b in bookies.choose(LedgerConfig(3, 3, 2))}) == 3
            )
        bookies.failed("b1")
        for _ in range(20):
            spare = bookies.spare(["b1", "b3", "b5"])
            assert spare is not None
            assert spare.bookie_id == "b2"

    simulate(main)


def test_what_cannot_be_written_is_not_chosen() -> None:
    async def main(sim: Simulation) -> None:
        cluster, places = Cluster(sim, 4), Racks()
        bookies = LedgerBookies(cluster.bookies, cluster.runtime, places)
        places.read_only = {"b1", "b2"}
        assert bookies.attainable(LedgerConfig(3, 3, 2)) == LedgerConfig(2, 2, 2)
        assert {b.bookie_id for b in bookies.choose(LedgerConfig(3, 3, 2))} == {"b3", "b4"}
        assert bookies.spare(["b3", "b4"]) is None
        places.read_only.add("b3")
        with pytest.raises(StorageError, match="2 bookies are needed and 1 are there"):
            bookies.attainable(LedgerConfig(3, 3, 2))

    simulate(main)


def test_only_who_was_given_something_is_told_to_begin() -> None:
    async def main(sim: Simulation) -> None:
        cluster, told = Cluster(sim, 4), list[str]()
        for name, bookie in cluster.bookies.items():
            bookie.flush = partial(told.append, name)  # type: ignore[method-assign]
        bookies = LedgerBookies(cluster.bookies, cluster.runtime)
        for name in ("b3", "b1", "b3"):
            bookies.given(cluster.bookies[name])
        bookies.flush()
        assert told == ["b3", "b1"]
        bookies.flush()
        assert told == ["b3", "b1"]

    simulate(main)


def test_who_fails_again_is_left_alone_for_longer() -> None:
    failures = first_failure(100)
    assert failures.until == 100 + SUSPECT_SECONDS
    assert failures.and_one_at(110) == Failures(110 + SUSPECT_SECONDS, SUSPECT_SECONDS)
    for n in range(1, 12):
        failures = failures.and_one_at(failures.until + 1)
        assert failures.seconds == min(SUSPECT_SECONDS * 2**n, QUARANTINE_SECONDS_MAX)
    later = failures.until + QUARANTINE_SECONDS_MAX + 1
    assert failures.and_one_at(later) == first_failure(later)


def test_a_full_bookie_gets_no_new_ledgers_but_those_that_may_use_the_reserve() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 2)
        bookies = LedgerBookies(cluster.bookies, cluster.runtime)
        config, of_cursors = LedgerConfig(1, 1, 1), LedgerConfig(2, 2, 2, reserve=True)
        bookies.failed("b1", StorageFullError("b1 is full"))
        assert not bookies.is_suspect("b1")
        assert {b.bookie_id for _ in range(20) for b in bookies.choose(config)} == {"b2"}
        assert bookies.spare(["b2"]) is None
        assert not bookies.is_full(1)
        assert bookies.is_full(2)
        bookies.failed("b2", StorageFullError("b2 is full"))
        with pytest.raises(StorageFullError, match="the disks of 2 bookies are full"):
            bookies.attainable(config)
        assert bookies.attainable(of_cursors) == of_cursors
        assert len(bookies.choose(of_cursors)) == 2
        bookies.has_room(["b2"])
        assert [b.bookie_id for b in bookies.choose(config)] == ["b2"]
        assert bookies.is_full(2)
        await asyncio.sleep(FULL_PROBE_SECONDS + FULL_REMEMBERED_SECONDS + 1)
        assert not bookies.is_full(2)  # nobody has tried since

    simulate(main)


def test_one_new_ledger_at_a_time_tries_a_full_bookie() -> None:
    async def main(sim: Simulation) -> None:
        cluster = Cluster(sim, 1)
        bookies, config = LedgerBookies(cluster.bookies, cluster.runtime), LedgerConfig(1, 1, 1)
        bookies.failed("b1", StorageFullError("b1 is full"))
        await asyncio.sleep(FULL_PROBE_SECONDS)
        bookies.attainable(config)
        bookies.choose(config)
        with pytest.raises(StorageFullError):
            bookies.attainable(config)
        bookies.try_full()  # something was freed
        assert bookies.attainable(config) == config

    simulate(main)
