"""Commits of two sessions of ZooKeeper that come together: all is as if one had followed the other.

Some are cancelled, and the answers of some are lost. None is tried again and again.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import cast

import pytest

from pulsark.errors import BadVersionError, OutcomeUnknownError
from pulsark.metadata.based_values import decode
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.store import ABSENT, ANY_VERSION
from pulsark.metadata.zookeeper import layout
from pulsark.metadata.zookeeper.client import ZooKeeperClient
from pulsark.metadata.zookeeper.instance import find_or_create
from pulsark.metadata.zookeeper.layout import Layout
from pulsark.metadata.zookeeper.plan import Prune, Wanted
from pulsark.metadata.zookeeper.writer import Writer
from tests.sim.simulation import Simulation
from tests.support.faulty_metadata import Fate
from tests.support.impatient_zookeeper import ImpatientZooKeeper
from tests.support.ledgers import simulate

FIRST_SEED = int(os.environ.get("SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + (1 if "SEED" in os.environ else 100))
PATHS = ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/e"]
MULTIS_MAX = 60

NEW = -3
"""A version that nobody knows, because no answer told it."""

State = Mapping[str, int]
"""Versions of the values that are there."""
Commit = Sequence[Wanted]
Outcome = Sequence[int] | BaseException


class Client(ImpatientZooKeeper):
    """That of both sessions."""

    session_id = 1
    multis_max = MULTIS_MAX + 1

    def state(self) -> State:
        found = {path: self.nodes.get(Layout().node(path)) for path in PATHS}
        return {
            path: stored.base + node.version
            for path, node in found.items()
            if node is not None and (stored := decode(path, node.data)) is not None
        }


def some_commit(rng: random.Random, state: State) -> Commit:
    """No value goes in the commit that makes one below it: nobody asks for that."""
    if rng.random() < 0.1:
        return (Prune(rng.choice(PATHS)),)
    changes: list[Change] = []
    for path in rng.sample(PATHS, rng.choice((1, 1, 2, 3))):
        now = state.get(path, ABSENT)
        expected = rng.choice((ABSENT, ANY_VERSION, now, now))
        kind = rng.choice((Put, Put, Put, Delete, Delete, Check))
        if kind is Put:
            changes.append(Put(path, b"%d" % rng.randrange(100), expected))
        elif kind is Check:
            changes.append(Check(path, now if expected == ANY_VERSION else expected))
        elif not any(other.path.startswith(f"{path}/") for other in changes):
            changes.append(Delete(path, ANY_VERSION if expected == ABSENT else expected))
    deleted = [change.path for change in changes if isinstance(change, Delete)]
    return [c for c in changes if not any(c.path.startswith(f"{path}/") for path in deleted)]


def after(state: State, commit: Commit, outcome: Outcome) -> State | None:
    """What there is after a commit; ``None`` if this cannot have been its outcome."""
    changes = [each for each in commit if not isinstance(each, Prune)]
    holds = all(_holds(state, change) for change in changes)
    if isinstance(outcome, BadVersionError):
        return None if holds else state
    if not holds:
        return None
    versions = (NEW,) * len(commit) if isinstance(outcome, BaseException) else outcome
    new = dict(state)
    for change, version in zip(commit, versions, strict=True):
        if isinstance(change, Put):
            if NEW != version <= state.get(change.path, ABSENT):
                return None
            new[change.path] = version
        elif isinstance(change, Delete):
            del new[change.path]
    return new


def _holds(state: State, change: Change) -> bool:
    now = state.get(change.path, ABSENT)
    if isinstance(change, Delete) and now == ABSENT:
        return False
    return change.expected_version in (ANY_VERSION, now)


def possible(state: State, done: Sequence[tuple[Commit, Outcome]]) -> Iterator[State]:
    """What there may be after commits of which each was made at some time, or without answer."""
    unheard = [i for i, (_, it) in enumerate(done) if isinstance(it, BaseException)]
    unheard = [i for i in unheard if not isinstance(done[i][1], BadVersionError)]
    for count in range(len(unheard) + 1):
        for never in combinations(unheard, count):
            for order in permutations(set(range(len(done))) - set(never)):
                now: State | None = state
                for place in order:
                    now = None if now is None else after(now, *done[place])
                if now is not None:
                    yield now


def agrees(state: State, real: State) -> bool:
    known = {path: version for path, version in state.items() if version != NEW}
    return state.keys() == real.keys() and known.items() <= real.items()


async def live(rng: random.Random) -> None:
    client = Client()
    session = cast("ZooKeeperClient", client)
    await find_or_create(session, "identity", create=True)
    writers = [Writer(session, Layout(), 30.0, lambda _: None, lambda _: None) for _ in range(2)]
    state = client.state()
    highest = dict.fromkeys(PATHS, ABSENT)
    for _ in range(rng.randrange(2, 8)):
        client.multis = 0
        if rng.random() < 0.6:
            client.fates.extend(rng.choices(list(Fate), k=4))
        commits = [some_commit(rng, state) for _ in range(rng.randrange(1, 5))]
        tasks = [asyncio.create_task(rng.choice(writers).write(each)) for each in commits]
        if rng.random() < 0.4:
            for _ in range(rng.randrange(12)):
                await read(rng.choice(writers), client, rng.choice(PATHS))
            rng.choice(tasks).cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1)
        assert client.multis < MULTIS_MAX, f"tried again and again: {commits}"
        for outcome in outcomes:
            if not isinstance(outcome, BadVersionError | OutcomeUnknownError | list):
                assert isinstance(outcome, asyncio.CancelledError), repr(outcome)
        done = list(zip(commits, outcomes, strict=True))
        real = client.state()
        assert any(agrees(each, real) for each in possible(state, done)), (state, done, real)
        for commit, outcome in done:
            if not isinstance(outcome, BaseException):
                for change, version in zip(commit, outcome, strict=True):
                    assert not isinstance(change, Put) or version > highest[change.path]
        state = real
        highest |= {path: max(highest[path], version) for path, version in real.items()}
        client.fates.clear()


async def read(writer: Writer, client: Client, path: str) -> None:
    """As the store does."""
    node = Layout().node(path)
    seen = writer.seen(node)
    found = await client.get(node)
    stored = None if found is None else decode(path, found.data)
    if seen is not None:
        seen(found, 0 if stored is None else stored.base)


@pytest.mark.parametrize("parts", [1, 64])
def test_commits_of_two_sessions(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "PARTS", parts)

    async def main(_: Simulation) -> None:
        for seed in SEEDS:
            try:
                await live(random.Random(seed))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    simulate(main)
