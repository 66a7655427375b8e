"""Lookups of several brokers agree, and only they claim what nobody has."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from pulsark.dispatch.brokers import isolation_source
from pulsark.dispatch.brokers.owners import ASSIGNED_SECONDS, Assigned
from pulsark.dispatch.topics import lookup as lookup_module
from pulsark.dispatch.topics.lookup import LookupResult
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.memory import MemoryTree
from pulsark.metadata.paths import (
    ASSIGNED_BUNDLES,
    assigned_bundle_path,
    bundle_owner_path,
    isolation_policies_path,
)
from pulsark.metadata.store import ABSENT
from pulsark.runtime import Runtime
from pulsark.wire.topic_name import TopicName
from tests.support.bundle_nodes import Node, nodes, topic, turns

NAME = topic(0)


async def ask(found: list[Node], node: Node, name: TopicName) -> LookupResult:
    """As a client: goes where it is sent, and asks again when it is told so."""
    authoritative = False
    for _ in range(20):
        try:
            result = await node.lookup.find(name, authoritative=authoritative)
        except ClientError:
            await turns(5)
            continue
        if not result.is_redirect:
            return result
        authoritative = True
        node = next(each for each in found if each.id == result.broker_id)
    raise AssertionError(f"{name} is not found")


def test_a_broker_that_is_alone_answers_for_all_and_claims_nothing() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        result = await one.lookup.find(NAME)
        assert result.urls == one.urls
        assert result.is_here
        assert result.through_service_url  # its name is localhost
        assert one.ownership.owned() == []

    asyncio.run(scenario())


def test_who_is_chosen_is_told_with_authority_and_then_known_to_all() -> None:
    async def scenario() -> None:
        found = await nodes(3)
        for node in found:
            await node.report(bundles={"b0:8080": 5, "b1:8080": 4, "b2:8080": 9}[node.id])
        await turns()
        sent_on = await found[0].lookup.find(NAME)
        assert sent_on.is_redirect
        assert sent_on.urls == found[1].urls
        result = await found[2].lookup.find(NAME, authoritative=True)
        assert result.is_here
        assert result.urls == found[2].urls
        for node in found:
            result = await node.lookup.find(NAME)
            assert (result.urls, result.is_redirect) == (found[2].urls, False)
            assert not result.through_service_url
            assert result.is_here is (node is found[2])

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_whoever_asks_whomever_comes_to_the_one_owner(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario() -> None:
        found = await nodes(3)
        for node in found:
            node.lookup.hands_over = seed % 2 == 1
        topics = [topic(number) for number in range(12)]
        asked = [(rng.choice(found), rng.choice(topics)) for _ in range(40)]
        results = await asyncio.gather(*(ask(found, node, name) for node, name in asked))
        owners: dict[str, str] = {}
        for (_, name), result in zip(asked, results, strict=True):
            bundle = await found[0].ownership.bundle_named(name)
            assert owners.setdefault(bundle, result.broker_id) == result.broker_id
            (owner,) = [node.id for node in found if node.ownership.has(bundle)]
            assert owner == result.broker_id
        assert max(Counter(owners.values()).values()) <= 3
        assert found[0].store.tree.children(ASSIGNED_BUNDLES) == []

    asyncio.run(scenario())


def test_where_one_address_leads_to_all_nobody_is_sent_on() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        one.lookup.hands_over = two.lookup.hands_over = True
        await one.report(bundles=1)
        await turns()
        result = await one.lookup.find(NAME)
        assert result.urls == two.urls
        assert not result.is_redirect
        assert result.through_service_url
        assert two.ownership.owned() != []
        assert not (await one.lookup.find(NAME, over_tls=True)).through_service_url
        here = await two.lookup.find(NAME)
        assert here.is_here
        assert here.through_service_url

    asyncio.run(scenario())


def test_a_client_that_cannot_be_sent_on_is_told_the_owner() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await one.report(bundles=1)
        await turns()
        result = await one.lookup.find(NAME, sends_on=False)
        assert (result.urls, result.is_redirect) == (two.urls, False)
        assert not result.through_service_url
        assert two.ownership.owned() != []

    asyncio.run(scenario())


def test_a_lookup_does_not_wait_for_ever_for_a_broker_that_does_not_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup_module, "CLAIM_SECONDS", 0.01)

    async def scenario() -> None:
        one, two = await nodes(2)
        one.lookup.hands_over = True
        await one.report(bundles=1)
        await turns()
        two.assigned.close()
        with pytest.raises(ClientError, match="not claimed yet"):
            await one.lookup.find(NAME)
        two.store.expire()
        await turns()
        assert (await one.lookup.find(NAME)).is_here
        await one.ownership.own(NAME)

    asyncio.run(scenario())


def test_a_bundle_that_is_being_unloaded_is_nobodys_for_a_moment() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        bundle = await one.ownership.own(NAME)
        assert (await two.lookup.find(NAME)).urls == one.urls
        await one.ownership.begin_leaving(bundle)
        await turns()
        for node in (one, two):
            with pytest.raises(ClientError, match="being unloaded"):
                await node.lookup.find(NAME)
        await one.ownership.leave(bundle, two.id)
        await turns()
        for node in (one, two):
            assert (await node.lookup.find(NAME)).urls == two.urls

    asyncio.run(scenario())


def test_who_is_named_by_the_former_owner_is_not_outrun() -> None:
    async def scenario() -> None:
        one, two, three = await nodes(3)
        two.assigned.close()
        bundle = await one.ownership.own(NAME)
        await one.ownership.begin_leaving(bundle)
        await one.ownership.leave(bundle, two.id)
        with pytest.raises(ClientError, match="goes to the broker b1"):
            await three.ownership.own(NAME)
        result = await three.lookup.find(NAME)
        assert result.is_redirect
        assert result.urls == two.urls
        two.store.expire()
        await turns()
        await three.ownership.own(NAME)
        assert one.store.tree.children(ASSIGNED_BUNDLES) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("hands_over", [True, False])
def test_who_is_told_by_another_while_a_lookup_chooses_gets_the_bundle(hands_over: bool) -> None:
    async def scenario() -> None:
        one, two, three = await nodes(3)
        for node in (one, two, three):
            node.lookup.hands_over = hands_over
        bundle = await one.ownership.bundle_named(NAME)

        async def late(*_given: object, **_options: bool) -> None:
            await three.lookup.assign(bundle, two.id)  # after it chose itself
            if hands_over:
                asyncio.get_running_loop().call_later(0.05, two.assigned.start)

        one.lookup._target = late  # type: ignore[method-assign, assignment]
        two.assigned.close()
        result = await one.lookup.find(NAME)
        assert (result.urls, result.is_redirect) == (two.urls, not hands_over)
        assert not one.ownership.has(bundle)

    asyncio.run(scenario())


@pytest.mark.parametrize("age_seconds", [0, ASSIGNED_SECONDS + 1])
def test_a_lookup_sends_to_who_was_told_to_claim_just_now(age_seconds: int) -> None:
    """Whatever else it would choose, even if the client was sent here with authority."""

    async def scenario() -> None:
        one, two = await nodes(2)
        two.assigned.close()
        bundle = await one.ownership.bundle_named(NAME)
        note = Assigned(two.id, Runtime().clock.now_ms() - 1000 * age_seconds)
        await one.store.put(assigned_bundle_path(bundle), note.encode(), ABSENT)
        found = await one.lookup.find(NAME, authoritative=True)
        assert found.is_redirect == (not age_seconds)
        assert found.broker_id == (one if age_seconds else two).id

    asyncio.run(scenario())


def test_a_lookup_waits_for_no_broker_that_has_died() -> None:
    async def scenario() -> None:
        one, two, three = await nodes(3)
        one.lookup.hands_over = True
        await one.report(bundles=5)
        await three.report(bundles=3)
        await turns()
        two.assigned.close()
        asking = asyncio.create_task(one.lookup.find(NAME))
        await turns()
        two.store.expire()
        async with asyncio.timeout(lookup_module.CLAIM_SECONDS / 2):
            assert (await asking).urls == three.urls

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [0, 1])
def test_a_bundle_that_nobody_has_is_placed(number: int) -> None:
    async def scenario() -> None:
        found = await nodes(3)
        bundle = await found[0].ownership.bundle_named(NAME)
        found[2].assigned.close()
        await found[0].lookup.assign(bundle, found[2].id)
        await found[0].lookup.place(bundle, found[number].id)
        assert found[number].ownership.has(bundle)
        with pytest.raises(ClientError):
            await found[0].lookup.place(bundle, found[1 - number].id)

    asyncio.run(scenario())


def test_without_a_sure_session_nothing_is_said() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await one.ownership.own(NAME)
        await two.lookup.find(NAME)
        for node in (one, two):
            node.store.session.timeout_seconds = 0.0
            node.store.session._sure_until = 0.0
            with pytest.raises(ClientError, match="was not heard of"):
                await node.lookup.find(NAME)

    asyncio.run(scenario())


def test_a_lookup_that_took_too_long_does_not_say_here() -> None:
    async def scenario() -> None:
        (one,) = await nodes(1)
        bundle_named = one.ownership.bundle_named

        async def late(name: TopicName) -> str:
            one.store.session._sure_until = 0.0
            return await bundle_named(name)

        one.ownership.bundle_named = late  # type: ignore[method-assign]
        with pytest.raises(ClientError, match="was not heard of"):
            await one.lookup.find(NAME)

    asyncio.run(scenario())


def test_a_broker_that_retires_sends_nobody_to_itself() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await one.registry.retire()
        await turns()
        for number in range(20):
            assert (await two.lookup.find(topic(number))).urls == two.urls

    asyncio.run(scenario())


# -- who may be chosen ---


def policy(primary: str, secondary: str = "", min_limit: int = 1) -> dict[str, object]:
    return {
        "namespaces": ["public/.*"],
        "primary": [primary],
        "secondary": [secondary] if secondary else [],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": str(min_limit), "usage_threshold": "100"},
        },
    }


@pytest.mark.feature("F79", "F91")
def test_a_policy_says_which_brokers_a_namespace_goes_to() -> None:
    async def scenario() -> None:
        found = await nodes(3)
        await found[0].resources.isolation.put("c", "p", policy("b1.*", "b2.*"))
        await turns()
        for number in range(20):
            assert (await ask(found, found[number % 3], topic(number))).urls == found[1].urls
        found[1].store.expire()
        await turns()
        for number in range(20):
            assert (await ask(found, found[0], topic(number))).urls == found[2].urls
        found[2].store.expire()
        await turns()
        with pytest.raises(ClientError, match="isolation policy p leaves no live") as refused:
            await found[0].lookup.find(NAME)
        assert refused.value.code is ServerError.ServiceNotReady
        assert not await found[0].lookup.give(await found[0].ownership.bundle_named(NAME))
        await found[0].resources.isolation.delete("c", "p")
        await turns()
        assert (await found[0].lookup.find(NAME)).is_here

    asyncio.run(scenario())


def test_no_policy_is_got_around_by_a_lookup_that_says_that_it_was_decided() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await one.resources.isolation.put("c", "p", policy("b1.*"))
        await turns()
        sent_on = await one.lookup.find(NAME, authoritative=True)
        assert (sent_on.is_redirect, sent_on.urls) == (True, two.urls)
        assert (await two.lookup.find(NAME, authoritative=True)).is_here

    asyncio.run(scenario())


@pytest.mark.feature("F79", "F91")
def test_who_has_not_heard_of_a_policy_claims_nothing_against_it() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        two.store.lose_watches()
        await one.resources.isolation.put("c", "p", policy("b0.*"))
        bundle = await two.ownership.bundle_named(NAME)
        with pytest.raises(ClientError, match=r"policies keep bundle .* away") as refused:
            await two.ownership.own(NAME)
        assert refused.value.code is ServerError.ServiceNotReady
        assert (two.ownership.has(bundle), two.ownership.owned()) == (False, [])
        assert await one.store.get(bundle_owner_path(bundle)) is None
        # A secondary broker may have it, whoever is there besides.
        await one.resources.isolation.put("c", "p", policy("b0.*", "b1.*"))
        assert await two.ownership.own(NAME) == bundle

    asyncio.run(scenario())


def test_policies_that_cannot_be_read_are_those_known_before() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        await one.resources.isolation.put("c", "p", policy("b0.*"))
        await turns()
        two.store.lose_watches()
        await one.store.put(isolation_policies_path("c"), b"of a later program")
        for _ in range(2):
            with pytest.raises(ClientError, match="policies keep bundle"):
                await two.ownership.own(NAME)
        await one.ownership.own(NAME)

    asyncio.run(scenario())


def test_a_claim_does_not_wait_for_policies_in_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolation_source, "_LOOK_SECONDS", 0.001)

    async def scenario() -> None:
        (one,) = await nodes(1)

        async def silent(cluster: str) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(one.resources.isolation, "stored", silent)
        await one.ownership.own(NAME)

    asyncio.run(scenario())


@pytest.mark.feature("F79", "F91")
def test_changes_of_policies_that_nobody_heard_of_are_read() -> None:
    async def scenario() -> None:
        one, two = await nodes(2)
        two.store.lose_watches()
        await one.resources.isolation.put("c", "p", policy("b0.*"))
        await turns()
        assert two.isolation.policies == ()
        two.store.watch_again()
        await turns()
        assert [each.name for each in two.isolation.policies] == ["p"]

    asyncio.run(scenario())


@pytest.mark.feature("F50")
def test_topics_go_to_brokers_that_serve_their_kind() -> None:
    async def scenario() -> None:
        tree = MemoryTree()
        lasting = await Node(tree, 0, non_persistent=False).start()
        passing = await Node(tree, 1, persistent=False).start()
        await turns()
        both = [lasting, passing]
        for number in range(20):
            result = await ask(both, both[number % 2], topic(number))
            assert result.urls == lasting.urls
        other = TopicName.parse("non-persistent://pulsar/system/t")
        for node in both:
            assert (await ask(both, node, other)).urls == passing.urls
        with pytest.raises(ClientError, match="b0:8080, where non-persistent topics are not"):
            await passing.lookup.find(TopicName.parse("non-persistent://public/default/t"))

    asyncio.run(scenario())
