"""Bundles are claimed, given up and lost, and two brokers never have one."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from pulsark.dispatch.brokers.owners import ASSIGNED_SECONDS, Assigned
from pulsark.dispatch.loop import retries
from pulsark.dispatch.topics import bundle_claims
from pulsark.dispatch.topics import ownership as ownership_module
from pulsark.dispatch.topics.bundles import Covered, NamespaceBundles
from pulsark.errors import (
    BadVersionError,
    ClientError,
    CorruptMetadataError,
    MetadataError,
    OutcomeUnknownError,
    PulsarkError,
    ServerError,
)
from pulsark.metadata.changes import Change
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.namespaces import Namespace, even_boundaries
from pulsark.metadata.paths import (
    ASSIGNED_BUNDLES,
    BUNDLE_OWNERS,
    assigned_bundle_path,
    bundle_epoch_path,
    bundle_owner_path,
)
from pulsark.metadata.store import ABSENT, Versioned
from pulsark.runtime import Runtime
from pulsark.wire.topic_name import TopicName
from tests.support.admin_api import SteppedClock
from tests.support.bundle_nodes import Node, nodes, topic, turns
from tests.support.faulty_metadata import Fate

NAME = topic(0)
UNHEARD = (Fate.NEVER, Fate.UNHEARD, Fate.LATE)
TURNS = (0, 1, 2, 5, 20, 200)
FATES = list(itertools.product(UNHEARD, repeat=2))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_claims, "_RETRY_SECONDS", 0)


def owners_of(found: list[Node], bundle: str) -> list[int]:
    return [index for index, node in enumerate(found) if node.ownership.has(bundle)]


def test_one_of_those_that_claim_at_once_has_the_bundle() -> None:
    async def scenario() -> None:
        found = await nodes(3)
        claims = await asyncio.gather(
            *(node.ownership.own(NAME) for node in found), return_exceptions=True
        )
        (bundle,) = {claim for claim in claims if isinstance(claim, str)}
        refused = [claim for claim in claims if not isinstance(claim, str)]
        assert [getattr(error, "code", None) for error in refused] == [
            ServerError.ServiceNotReady
        ] * 2
        assert len(owners_of(found, bundle)) == 1

    asyncio.run(scenario())


def test_a_bundle_that_was_given_up_is_the_next_owners_and_the_old_guard_is_worth_nothing() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        guard = await one.ownership.guard(NAME)
        (bundle,) = one.ownership.owned()
        assert await one.ownership.begin_leaving(bundle)
        assert not one.ownership.has(bundle)
        assert not await one.ownership.begin_leaving(bundle)
        with pytest.raises(ClientError, match="being unloaded"):
            await one.ownership.own(NAME)
        with pytest.raises(ClientError, match="owned by another broker"):
            await two.ownership.own(NAME)
        assert not one.ownership.holds(guard)
        await one.ownership.leave(bundle)
        assert not one.ownership.holds(guard)
        assert one.ownership.owned() == []
        later = await two.ownership.guard(NAME)
        with pytest.raises(BadVersionError):
            await one.store.commit((guard,))
        await two.store.commit((later,))
        with pytest.raises(ClientError, match="owned by another broker"):
            await one.ownership.own(NAME)
        assert one.lost == []

    asyncio.run(scenario())


@pytest.mark.parametrize("fates", FATES, ids=str)
def test_a_release_that_nobody_answered_is_made_once(fates: tuple[Fate, ...]) -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        one.store.fates.extend(fates)
        await one.ownership.leave(bundle)
        guard = await two.ownership.guard(NAME)
        await turns()
        assert two.ownership.holds(guard)
        assert owners_of([one, two], bundle) == [1]
        found = await one.owners.of(bundle)
        assert found is not None
        assert found.broker_id == two.id

    asyncio.run(scenario())


def test_a_release_that_is_tried_again_late_does_not_end_the_next_claim() -> None:
    """It was made and not answered. Then the bundle was another broker's, and came back."""

    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        former = one.ownership.guard_of(bundle)
        await one.ownership.begin_leaving(bundle)
        reached, go_on, read, reads = asyncio.Event(), asyncio.Event(), one.store.get, 0

        async def slow(path: str) -> Versioned | None:
            nonlocal reads
            reads += path == bundle_owner_path(bundle)
            if reads == 2:
                reached.set()
                await go_on.wait()
            return await read(path)

        one.store.get = slow
        one.store.fates.append(Fate.UNHEARD)
        leaving = asyncio.create_task(one.ownership.leave(bundle))
        await reached.wait()
        await two.ownership.own(NAME)
        one.store.get = read
        await one.ownership.doubt(former)
        await two.ownership.begin_leaving(bundle)
        await two.ownership.leave(bundle)
        guard = await one.ownership.guard(NAME)
        go_on.set()
        await leaving
        assert one.ownership.has(bundle)
        assert one.ownership.guard_of(bundle) == guard
        with pytest.raises(ClientError, match="owned by another broker"):
            await two.ownership.own(NAME)

    asyncio.run(scenario())


def test_a_release_is_tried_for_as_long_as_the_session_lasts() -> None:
    """Others wait for it: they are told that the bundle is about to leave."""

    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        one.store.fates.extend([Fate.NEVER] * 3 * bundle_claims._ATTEMPTS)
        await one.ownership.leave(bundle)
        await two.ownership.own(NAME)
        await two.ownership.begin_leaving(bundle)
        two.store.fates.extend([Fate.NEVER] * 1000)
        leaving = asyncio.create_task(two.ownership.leave(bundle))
        await turns()
        two.store.expire()
        await leaving
        await one.ownership.own(NAME)

    asyncio.run(scenario())


def test_who_stops_while_the_store_is_away_leaves_the_rest_to_its_session() -> None:
    """Nobody would tell it that the session is over: it would never end."""

    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        one.store.fates.extend([Fate.NEVER] * 1000)
        leaving = asyncio.create_task(one.ownership.leave(bundle))
        await turns()
        assert not leaving.done()
        one.ownership.stop()
        await turns()
        assert not leaving.done()  # it may still be answered
        one.store.session._sure_until = -1.0
        await turns()
        with pytest.raises(MetadataError, match="not heard of"):
            await leaving
        with pytest.raises(ClientError, match="owned by another broker"):
            await two.ownership.own(NAME)
        one.store.expire()
        await two.ownership.own(NAME)

    asyncio.run(scenario())


class Unread:
    """Reads of owners that fail, one after the other, and then answers."""

    def __init__(self, node: Node, *errors: MetadataError) -> None:
        self._get, self._errors = node.store.get, list(errors)
        node.store.get = self.get

    async def get(self, path: str) -> Versioned | None:
        if path.startswith(BUNDLE_OWNERS) and self._errors:
            raise self._errors.pop(0)
        return await self._get(path)


def test_a_release_whose_read_fails_is_tried_again() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        Unread(one, *[MetadataError("the store failed")] * 3)
        await one.ownership.leave(bundle)
        await two.ownership.own(NAME)

    asyncio.run(scenario())


def test_what_was_not_given_up_in_the_end_can_be_claimed_and_is_not_leaving_then() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        former = await one.ownership.guard(NAME)
        (bundle,) = one.ownership.owned()
        await one.ownership.begin_leaving(bundle)
        Unread(one, CorruptMetadataError("the owner cannot be read"))
        with pytest.raises(CorruptMetadataError):
            await one.ownership.leave(bundle)
        await turns()
        with pytest.raises(ClientError, match="being unloaded"):
            await two.lookup.find(NAME)
        guard = await one.ownership.guard(NAME)
        await turns()
        assert one.ownership.has(bundle)
        assert (await two.lookup.find(NAME)).broker_id == one.id
        await one.store.commit((guard,))
        with pytest.raises(BadVersionError):
            await one.store.commit((former,))

    asyncio.run(scenario())


@pytest.mark.parametrize("fates", FATES, ids=str)
def test_such_a_claim_that_nobody_answered_is_made(fates: tuple[Fate, ...]) -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        Unread(one, CorruptMetadataError("the owner cannot be read"))
        with pytest.raises(CorruptMetadataError):
            await one.ownership.leave(bundle)
        one.store.fates.extend(fates)
        guard = await one.ownership.guard(NAME)
        one.store.fates.clear()
        await turns()
        assert one.ownership.holds(guard)
        await one.store.commit((guard,))
        assert (await two.lookup.find(NAME)).broker_id == one.id

    asyncio.run(scenario())


def test_a_claim_that_was_made_before_is_not_taken_for_this_one() -> None:
    """Its broker is named in the bundle's record although another one has claimed it since."""

    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        await one.ownership.leave(bundle)
        await asyncio.gather(
            two.ownership.own(NAME), one.ownership.own(NAME), return_exceptions=True
        )
        (owner,) = owners_of([one, two], bundle)
        found = one.store.tree.get(bundle_owner_path(bundle))
        record = one.store.tree.get(bundle_epoch_path(bundle))
        assert found is not None
        assert record is not None
        instance = [one, two][owner].ownership.instance
        assert json.loads(found.value)["instance"] == instance
        assert json.loads(record.value)["broker"] == instance

    asyncio.run(scenario())


def test_all_attempts_of_a_claim_unheard_and_made_late_do_no_harm() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        one.store.fates.extend([Fate.LATE] * bundle_claims._ATTEMPTS)
        with pytest.raises(ClientError, match="cannot be claimed now"):
            await one.ownership.own(NAME)
        await turns()
        with pytest.raises(ClientError, match="owned by another"):
            await two.ownership.own(NAME)
        guard = await one.ownership.guard(NAME)
        await one.store.commit((guard,))

    asyncio.run(scenario())


def test_with_its_session_a_broker_loses_all_at_once_and_the_next_one_gets_it() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        bundles = {await one.ownership.own(topic(number)) for number in range(20)}
        assert len(bundles) == 4
        one.store.expire()
        assert sorted(one.lost) == sorted(bundles)
        assert one.ownership.owned() == []
        with pytest.raises(PulsarkError):
            await one.ownership.own(NAME)
        await two.ownership.own(NAME)

    asyncio.run(scenario())


def test_a_guard_that_was_refused_loses_its_bundle_alone() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        guards = {await one.ownership.guard(topic(number)) for number in range(20)}
        guard = min(guards, key=str)
        one.ownership.lost(guard)
        one.ownership.lost(guard)
        assert [bundle_epoch_path(bundle) for bundle in one.lost] == [guard.path]
        assert len(one.ownership.owned()) == len(guards) - 1

    asyncio.run(scenario())


@pytest.mark.parametrize("age_seconds", [ASSIGNED_SECONDS, ASSIGNED_SECONDS + 1, -1])
def test_who_was_told_to_claim_a_bundle_has_a_while_for_it(age_seconds: int) -> None:
    """A broker that does not follow such notes keeps the bundle from nobody for long."""

    async def scenario() -> None:
        clock = SteppedClock()
        tree = MemoryTree()
        one, two = [await Node(tree, n, Runtime(clock=clock)).start() for n in range(2)]
        await turns()
        two.assigned.close()
        bundle = await one.ownership.bundle_named(NAME)
        note = Assigned(two.id, clock.now_ms() - 1000 * age_seconds)
        await one.store.put(assigned_bundle_path(bundle), note.encode(), ABSENT)
        if age_seconds == ASSIGNED_SECONDS:
            with pytest.raises(ClientError, match="goes to the broker"):
                await one.ownership.own(NAME)
            await two.ownership.own(NAME)
        else:
            await one.ownership.own(NAME)
        assert tree.get(assigned_bundle_path(bundle)) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(12))
def test_a_broker_claims_what_it_is_told_to_whatever_it_misses(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads fail, and changes are not told, for a while."""
    monkeypatch.setattr(retries, "METADATA_RETRY_SECONDS", 0)
    monkeypatch.setattr(retries, "METADATA_RETRY_SECONDS_MAX", 0)

    async def scenario() -> None:
        chance = random.Random(seed)
        found = await nodes(3)
        tree, told = found[0].store.tree, dict[str, Node]()
        failing: set[Node] = set()

        def shaky(node: Node, call: Callable[[str], Awaitable[Any]]) -> Any:
            async def read(path: str) -> Any:
                if node in failing and path.startswith(ASSIGNED_BUNDLES):
                    raise MetadataError("the store does not answer")
                return await call(path)

            return read

        for node in found[1:]:
            node.store.get = shaky(node, node.store.get)
            node.store.children = shaky(node, node.store.children)
        for _ in range(60):
            node = chance.choice(found[1:])
            bundle = await node.ownership.bundle_named(topic(chance.randrange(20)))
            match chance.choice(["tell", "tell", "fail", "away", "release"]):
                case "tell":
                    await found[0].lookup.assign(bundle, node.id, anew=True)
                    if tree.get(bundle_owner_path(bundle)) is None:  # else it was not told
                        told[bundle] = node
                case "fail":
                    failing.symmetric_difference_update({node})
                case "away":
                    node.store.watch_again() if node.store.away else node.store.lose_watches()
                case "release" if await node.ownership.begin_leaving(bundle):
                    await node.ownership.leave(bundle)
                    del told[bundle]
            await turns(chance.choice((0, 1, 2, 3, 5, 60)))
        failing.clear()
        for node in found[1:]:
            if node.store.away:
                node.store.watch_again()
        await turns(600)
        for bundle, node in told.items():
            assert node.ownership.has(bundle)
        assert tree.children(ASSIGNED_BUNDLES) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("named", [0, 1, 2])
@pytest.mark.parametrize("owner", [0, 1, None])
def test_a_note_goes_with_the_broker_that_it_names(named: int, owner: int | None) -> None:
    """Also if there is nothing to claim any more, and no other broker's note."""

    async def scenario() -> None:
        found = await nodes(3)
        found[2].assigned.close()
        bundle = await found[0].ownership.bundle_named(NAME)
        if owner is not None:
            await found[owner].ownership.claim(bundle)
        note = Assigned(found[named].id, Runtime().clock.now_ms())
        path = assigned_bundle_path(bundle)
        await found[2].store.put(path, note.encode(), ABSENT)
        await turns()
        assert (found[2].store.tree.get(path) is None) == (named < 2)
        expected = owner if owner is not None else named if named < 2 else None
        assert owners_of(found, bundle) == ([] if expected is None else [expected])

    asyncio.run(scenario())


def test_who_has_company_knows_nothing_of_what_was_before_its_claim() -> None:
    async def scenario() -> None:
        clock = SteppedClock()
        tree = MemoryTree()
        one = await Node(tree, 0, Runtime(clock=clock)).start()
        bundle = await one.ownership.own(NAME)
        assert one.ownership.known_since(bundle) == -math.inf
        claimed = clock.monotonic()
        clock.ms += 5000
        await Node(tree, 1, Runtime(clock=clock)).start()
        await turns()
        assert one.ownership.known_since(bundle) == claimed
        others = {await one.ownership.own(topic(number)) for number in range(20)} - {bundle}
        assert {one.ownership.known_since(other) for other in others} == {clock.monotonic()}

    asyncio.run(scenario())


def test_what_concerns_one_bundle_does_not_go_through_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        guards = {await one.ownership.guard(topic(number)) for number in range(20)}
        assert len(guards) == 4
        looked_at = []

        def guard_version(held: object) -> int | None:
            looked_at.append(held)
            return found(held)

        found = ownership_module._Held.guard_version.fget
        monkeypatch.setattr(ownership_module._Held, "guard_version", property(guard_version))
        for number, guard in enumerate(guards):
            assert one.ownership.holds(guard)
            assert len(looked_at) == 2 * number + 1
            one.ownership.lost(guard)
            assert len(looked_at) == 2 * number + 2
            assert not one.ownership.holds(guard)

    asyncio.run(scenario())


def test_what_a_former_process_of_the_broker_has_is_no_obstacle() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        again = await Node(one.store.tree, 0).start()
        guard = await again.ownership.guard(NAME)
        one.ownership.lost(await one.ownership.guard(NAME))
        assert one.lost == [bundle]
        with pytest.raises(ClientError, match="owned by another"):
            await one.ownership.own(NAME)
        with pytest.raises(ClientError, match="owned by another"):
            await two.ownership.own(NAME)
        await again.store.commit((guard,))

    asyncio.run(scenario())


@pytest.mark.parametrize("whole", ["leaving", "held", "lost", "session over"])
@pytest.mark.parametrize("part", ["nobody's", "former", "the same", "newer", "being claimed"])
@pytest.mark.parametrize("is_claimed", [True, False])
def test_after_a_split_the_broker_has_the_parts_that_are_its_own(
    whole: str, part: str, is_claimed: bool
) -> None:
    """Compare with a table: a part that was claimed later stays, a former one goes."""

    async def scenario() -> None:
        (one,) = await nodes(1)
        bundle = await one.ownership.own(NAME)
        half = f"{bundle[:-10]}0x00000001"
        is_there = part not in ("nobody's", "being claimed")
        before = await one.ownership.claim(half) if is_there else None
        version = (before or 0) + {"former": 1, "newer": -1}.get(part, 0)
        guard = one.ownership.guard_of(bundle)
        assert guard is not None
        if whole == "lost":
            one.ownership.lost(guard)
        elif whole != "held":
            await one.ownership.begin_leaving(bundle)
        if whole == "session over":
            one.store.expire()
        if part == "being claimed":
            claiming = asyncio.create_task(one.ownership.claim(half))
            await asyncio.sleep(0)
        gained: list[str] = []
        one.ownership.gained = gained.append
        one.ownership.divided(bundle, {half: version}, [half] if is_claimed else [])
        found = one.ownership.guard_of(half)
        if whole != "leaving":
            expected = None if whole == "session over" else before
            assert gained == []
        elif part in ("nobody's", "former"):
            expected = version if is_claimed else None
            assert gained == ([half] if is_claimed else [])
            assert not one.ownership.is_leaving(bundle)
        else:
            expected = before
            assert gained == []
        assert (found and found.expected_version) == expected
        if part == "being claimed" and whole != "session over":
            assert await claiming == one.ownership.guard_of(half).expected_version

    asyncio.run(scenario())


class Hesitant:
    """Lets the calls of a node's store take a few turns of the loop, before and after."""

    def __init__(self, node: Node, chance: random.Random) -> None:
        self._store, self._chance = node.store, chance
        self._get, self._commit = node.store.get, node.store.commit
        self.answers = False
        """Whether the outcome of each write is told."""
        node.store.get, node.store.commit = self.get, self.commit

    async def get(self, path: str) -> Versioned | None:
        await turns(self._chance.choice(TURNS))
        found = await self._get(path)
        await turns(self._chance.choice(TURNS))
        return found

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        await turns(self._chance.choice(TURNS))
        if not self.answers and not self._chance.randrange(3):
            self._store.fates.append(self._chance.choice([Fate.NEVER, Fate.UNHEARD]))
        try:
            return await self._commit(changes)
        except OutcomeUnknownError:
            await turns(self._chance.choice([0, 1000]))  # it takes a while to give up
            raise
        finally:
            await turns(self._chance.choice(TURNS))


@pytest.mark.parametrize("seed", [*range(20), 126, 313, 401])
def test_a_bundle_that_a_broker_has_is_its_own_in_the_store(seed: int) -> None:
    """Requests at both brokers meet each other, in a slow store that does not answer all writes."""

    async def scenario() -> None:
        chance = random.Random(seed)
        found = await nodes(2)
        tree = found[0].store.tree
        bundle = await found[0].ownership.bundle_named(NAME)
        left: set[int] = set()
        stores = [Hesitant(node, chance) for node in found]

        def check() -> None:
            for node in found:
                if node.ownership.has(bundle):
                    owner = tree.get(bundle_owner_path(bundle))
                    guard = node.ownership.guard_of(bundle)
                    assert json.loads(owner.value)["instance"] == node.ownership.instance
                    assert tree.get(guard.path).version == guard.expected_version

        async def claims(node: Node) -> None:
            with suppress(ClientError):
                version = await node.ownership.claim(bundle)
                assert node.ownership.has(bundle)
                assert node.ownership.guard_of(bundle).expected_version == version
                assert version not in left

        async def releases(node: Node) -> None:
            if await node.ownership.begin_leaving(bundle):
                guard = node.ownership.guard_of(bundle)
                assert guard is None or guard.expected_version not in left
                left.update([] if guard is None else [guard.expected_version])
                await turns(chance.choice(TURNS))
                await node.ownership.leave(bundle, chance.choice(["", *(n.id for n in found)]))

        async def doubts(node: Node) -> None:
            guard = node.ownership.guard_of(bundle)
            if guard is not None:
                await turns(chance.choice(TURNS))
                is_over = tree.get(guard.path).version != guard.expected_version
                await node.ownership.doubt(guard)
                assert not is_over or node.ownership.guard_of(bundle) != guard

        tasks: list[asyncio.Task[None]] = []
        for _ in range(100):
            node, action = (
                chance.choice(found),
                chance.choice([claims, claims, claims, releases, doubts, doubts]),
            )
            tasks.append(asyncio.create_task(action(node)))
            for _ in range(chance.choice(TURNS)):
                await asyncio.sleep(0)
                check()
        await asyncio.gather(*tasks)
        for store in stores:
            store.answers = True
        await asyncio.gather(*map(claims, found))
        check()
        assert len(owners_of(found, bundle)) == 1

    asyncio.run(scenario())


def test_a_claim_is_refused_if_the_session_may_be_over_when_it_is_answered() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        claiming = asyncio.create_task(one.ownership.own(NAME))
        await asyncio.sleep(0)
        one.store.session._sure_until = -1.0
        with pytest.raises(ClientError, match="was not heard of"):
            await claiming

    asyncio.run(scenario())


def test_while_a_bundle_is_lost_a_claim_of_it_is_refused() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        claiming = asyncio.create_task(one.ownership.own(NAME))
        await asyncio.sleep(0)
        one.ownership._lose_all()
        with pytest.raises(ClientError, match="was lost just now"):
            await claiming
        assert one.ownership.owned() == []
        await one.ownership.own(NAME)

    asyncio.run(scenario())


def test_whoever_was_cancelled_leaves_the_claim_to_others() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        claiming = asyncio.create_task(one.ownership.own(NAME))
        await asyncio.sleep(0)
        other = asyncio.create_task(one.ownership.own(NAME))
        claiming.cancel()
        bundle = await other
        assert one.ownership.has(bundle)

    asyncio.run(scenario())


def test_each_topic_is_in_one_bundle() -> None:
    namespace = Namespace("public/default", even_boundaries(7))
    bundles = NamespaceBundles(namespace)
    covered = {
        f"public/default/{one}": Covered(f"public/default/{one}") for one in namespace.bundles
    }
    for number in range(1000):
        name = topic(number)
        assert [bundle for bundle, names in covered.items() if name in names] == [bundles.of(name)]
        other = TopicName.parse(f"persistent://public/other/t{number}")
        assert not any(other in names for names in covered.values())


def test_the_ends_of_the_hash_space_are_in_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsark.dispatch.topics import bundles as module

    namespace = Namespace("public/default", even_boundaries(4))
    for point, low in ((0, 0), (0x3FFFFFFF, 0), (0x40000000, 1), (0xFFFFFFFE, 3), (0xFFFFFFFF, 3)):
        monkeypatch.setattr(module, "bundle_hash", lambda name, point=point: point)
        bundle = NamespaceBundles(namespace).of(NAME)
        assert bundle == f"public/default/{namespace.bundles[low]}"
        assert NAME in Covered(bundle)
