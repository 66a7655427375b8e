"""Moves from busy brokers to others: few, for a reason, and they come to an end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.brokers.shedding import MOVES_MAX, ROUNDS, Move, Shedding

THRESHOLD = 0.1
MINUTE = 60.0
GRACE = 30 * MINUTE


def anybody(broker_id: str, bundle: str) -> bool:
    return True


class Cluster:
    """Bundles with their loads, and who has each; what brokers tell may be a little wrong."""

    def __init__(self, owners: dict[str, str], parts: dict[str, float], *, noise: float = 0.0):
        self.owners, self.parts, self.noise = owners, parts, noise
        self.brokers = sorted({*owners.values()})
        self.shedding = Shedding()
        self.now = 0.0
        self.rng = random.Random(1)
        self.moves: list[tuple[float, Move]] = []
        self.may_have = anybody

    def utilisation(self, broker_id: str) -> float:
        return sum(self.parts[b] for b, owner in self.owners.items() if owner == broker_id)

    def told(self) -> dict[str, LoadReport]:
        found = {}
        for broker_id in self.brokers:
            factor = 1 + self.rng.uniform(-self.noise, self.noise)
            owned = [b for b, owner in self.owners.items() if owner == broker_id]
            parts = sorted(((b, factor * self.parts[b]) for b in owned), key=lambda p: -p[1])
            used = min(factor * self.utilisation(broker_id), 1.0)
            found[broker_id] = LoadReport(used, len(owned), busiest=tuple(parts[:10]))
        return found

    def round(self) -> list[Move]:
        self.now += MINUTE
        moves = self.shedding.round(
            self.told(),
            self.now,
            threshold=THRESHOLD,
            grace_seconds=GRACE,
            may_have=self.may_have,
        )
        for move in moves:
            assert self.owners[move.bundle] == move.source
            self.owners[move.bundle] = move.to
            self.moves.append((self.now, move))
        return moves

    def rounds(self, number: int) -> int:
        return sum(len(self.round()) for _ in range(number))


def cluster_of(*loads: list[float]) -> Cluster:
    parts = {f"{b}/{n}": load for b, each in enumerate(loads) for n, load in enumerate(each)}
    found = Cluster({bundle: f"b{bundle[0]}" for bundle in parts}, parts)
    found.brokers = [f"b{number}" for number in range(len(loads))]
    return found


def test_a_busy_broker_gives_to_one_that_is_not_after_some_rounds() -> None:
    cluster = cluster_of([0.3, 0.2, 0.2, 0.1], [], [0.1])
    assert cluster.rounds(ROUNDS - 1) == 0
    assert cluster.round() == [Move("0/0", "b0", "b1")]
    assert cluster.rounds(ROUNDS - 1) == 0, "what has become of it is waited for"


def test_who_is_busy_for_a_moment_gives_nothing() -> None:
    cluster = cluster_of([0.3, 0.3], [])
    for _ in range(30):
        assert cluster.rounds(ROUNDS - 1) == 0
        cluster.parts = dict.fromkeys(cluster.parts, 0.0)
        assert cluster.round() == []
        cluster.parts = dict.fromkeys(cluster.parts, 0.3)


@pytest.mark.parametrize(
    "loads",
    [
        [[0.2, 0.2], [0.2, 0.1]],  # the difference is small
        [[0.9], []],  # it would only be the same at the other one
        [[0.5, 0.4], [0.4]],  # it would be the other one that is busier
        [[0.5, 0.005], []],  # nobody would notice
        [[], []],
        [[0.9, 0.1]],  # there is nobody else
        [],
    ],
)
def test_what_is_left_alone(loads: list[list[float]]) -> None:
    assert cluster_of(*loads).rounds(10 * ROUNDS) == 0


def test_who_may_not_have_a_bundle_does_not_get_it() -> None:
    cluster = cluster_of([0.3, 0.2, 0.2], [], [0.1])
    cluster.may_have = lambda broker_id, bundle: (broker_id, bundle) != ("b1", "0/0")
    cluster.rounds(ROUNDS)
    assert [move for _, move in cluster.moves] == [Move("0/1", "b0", "b1")]
    cluster = cluster_of([0.3, 0.2, 0.2], [], [0.1])
    cluster.may_have = lambda broker_id, bundle: broker_id == "b2"
    cluster.rounds(ROUNDS)
    assert [move for _, move in cluster.moves] == [Move("0/1", "b0", "b2")]


def test_a_bundle_that_was_moved_stays_for_a_while() -> None:
    cluster = cluster_of([0.3, 0.2, 0.2], [])
    cluster.rounds(ROUNDS)
    moved = cluster.moves[0][1].bundle
    cluster.parts = {bundle: 0.3 if bundle == moved else 0.001 for bundle in cluster.parts}
    cluster.parts["1/more"] = 0.6
    cluster.owners["1/more"] = "b1"
    cluster.may_have = lambda broker_id, bundle: bundle == moved
    before = len(cluster.moves)
    cluster.rounds(29)
    assert len(cluster.moves) == before
    cluster.rounds(10)
    assert cluster.moves[before][1] == Move(moved, "b1", "b0")


def test_the_next_leader_knows_what_was_moved() -> None:
    cluster = cluster_of([0.3, 0.2, 0.2], [])
    cluster.rounds(ROUNDS)
    moved = cluster.moves[0][1].bundle
    cluster.parts = {bundle: 0.3 if bundle == moved else 0.001 for bundle in cluster.parts}
    cluster.parts["1/more"], cluster.owners["1/more"] = 0.6, "b1"
    cluster.may_have = lambda broker_id, bundle: bundle == moved
    known = cluster.shedding.moved
    cluster.shedding = Shedding(known)
    assert cluster.rounds(ROUNDS) == 0
    cluster.shedding = Shedding({bundle: at + 1e6 for bundle, at in known.items()})
    assert cluster.rounds(ROUNDS) == 1, "the clock went back: what is to come is not waited for"


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(30))
def test_moves_are_few_and_come_to_an_end(seed: int, noise: float) -> None:
    """Also if it is not known quite right who is how busy, and after everything has changed."""
    rng = random.Random(seed)
    brokers = [f"b{number}" for number in range(rng.randint(2, 6))]
    bundles = [f"n/{number}" for number in range(rng.randint(4, 60))]
    cluster = Cluster(
        {bundle: rng.choice(brokers) for bundle in bundles},
        dict.fromkeys(bundles, 0.0),
        noise=noise,
    )
    cluster.brokers = brokers
    cluster.rng = rng
    for _ in range(3):
        weights = {bundle: rng.paretovariate(1.2) for bundle in bundles}
        scale = 0.45 * len(brokers) / sum(weights.values())
        cluster.parts = {bundle: min(weight * scale, 0.9) for bundle, weight in weights.items()}
        began = cluster.now
        for _ in range(240):
            assert len(cluster.round()) <= MOVES_MAX
        assert cluster.rounds(120) == 0, "it is at rest"
        moved = Counter(move.bundle for at, move in cluster.moves if at > began)
        assert max(moved.values(), default=0) <= 2
        squares = sorted(cluster.utilisation(broker_id) for broker_id in brokers)
        average = sum(squares) / len(brokers)
        busy = [b for b in brokers if cluster.utilisation(b) > average + 2 * THRESHOLD]
        for source in busy:  # what it has is too large for anybody
            room = (cluster.utilisation(source) - squares[0]) / 2
            parts = [cluster.parts[b] for b, owner in cluster.owners.items() if owner == source]
            assert not [part for part in parts if 0.03 < part < 0.6 * room]


def test_with_each_move_the_load_is_more_even() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        cluster = cluster_of(*([rng.random() / 8 for _ in range(8)] for _ in range(3)), [])
        for _ in range(200):
            before = sum(cluster.utilisation(b) ** 2 for b in cluster.brokers)
            if cluster.round():
                after = sum(cluster.utilisation(b) ** 2 for b in cluster.brokers)
                assert after < before
