"""Deletions that broke off are finished by whoever has the bundle, whenever it has got it."""

from __future__ import annotations

from typing import Any, cast

from pulsark.dispatch.topics.bundles import Covered
from pulsark.dispatch.upkeep.interrupted_deletions import InterruptedDeletions
from pulsark.wire.topic_name import TopicName
from tests.support.broker_clients import scenario

FIRST = "public/default/0x00000000_0x40000000"
SECOND = "public/default/0x40000000_0x80000000"
NAMES = [TopicName.parse(f"persistent://public/default/t{number:02}") for number in range(100)]
LATE = next(name for name in NAMES if name in Covered(SECOND))
EARLY = next(name for name in NAMES if name in Covered(FIRST) and name > LATE)


@scenario()
async def test_those_of_a_bundle_that_is_claimed_meanwhile_are_not_forgotten(broker) -> None:
    for name in (EARLY, LATE):
        await broker.broker.topics.load(name, create=True)
    two = (await broker.another()).broker
    for bundle in (FIRST, SECOND):
        await broker.broker.bundle_release.release(bundle)
    await two.ownership.claim(FIRST)
    looked_at: list[TopicName] = []

    class Deletion:
        async def go_on_with(self, name: TopicName) -> bool:
            looked_at.append(name)
            await two.ownership.claim(SECOND)
            return False

    deletion = cast(Any, Deletion())
    interrupted = InterruptedDeletions(two.resources, two.catalog, deletion, two.share)
    await interrupted.finish()
    assert looked_at == [EARLY], "the other one was not this broker's when it was looked at"
    await interrupted.finish()
    assert LATE in looked_at
    looked_at.clear()
    await interrupted.finish()
    assert looked_at == []
