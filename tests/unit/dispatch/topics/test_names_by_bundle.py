"""Names are found by the bundle that they are in, whatever the bundles are."""

from __future__ import annotations

import random

import pytest

from pulsark.dispatch.topics import names_by_bundle
from pulsark.dispatch.topics.bundles import Covered
from pulsark.dispatch.topics.names_by_bundle import NamesByBundle
from pulsark.wire.topic_name import TopicName

EDGES = (
    "0x00000000_0xffffffff",
    "0x00000000_0x40000000",
    "0x40000000_0x40000001",
    "0x12345678_0x12ffffff",
    "0x12345678_0x9abcdef0",
    "0xff000000_0xffffffff",
    "0xfffffffe_0xffffffff",
)


def name(number: int) -> TopicName:
    return TopicName.parse(f"persistent://public/n{number % 3}/t{number}")


@pytest.mark.parametrize("edges", EDGES)
def test_what_is_in_a_bundle_is_found(edges: str) -> None:
    found, there = NamesByBundle(), set()
    rng = random.Random(edges)
    for _ in range(3000):
        one = name(rng.randrange(1000))
        if rng.random() < 0.6:
            found.add(one)
            there.add(one)
        else:
            found.discard(one)
            there.discard(one)
    for namespace in ("public/n0", "public/n1", "public/n9"):
        bundle = Covered(f"{namespace}/{edges}")
        assert sorted(found.inside(bundle)) == sorted(one for one in there if one in bundle)
    for one in there:
        found.discard(one)
    assert found._slices == {}
    found.add(name(1))
    found.clear()
    assert list(found.inside(Covered("public/n1/0x00000000_0xffffffff"))) == []


def test_the_last_point_is_in_the_last_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    from pulsark.dispatch.topics import bundles

    for module in (bundles, names_by_bundle):
        monkeypatch.setattr(module, "bundle_hash", lambda name: 0xFFFFFFFF)
    found = NamesByBundle()
    found.add(name(0))
    assert list(found.inside(Covered("public/n0/0xc0000000_0xffffffff"))) == [name(0)]
    assert list(found.inside(Covered("public/n0/0x40000000_0xc0000000"))) == []


def test_a_bundle_is_found_without_a_look_at_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = NamesByBundle()
    for number in range(3000):
        found.add(name(number))
    looked_at = []
    contains = Covered.__contains__
    monkeypatch.setattr(
        Covered, "__contains__", lambda self, one: looked_at.append(one) or contains(self, one)
    )
    bundle = Covered("public/n0/0x40000000_0x80000000")
    assert 200 < len(list(found.inside(bundle))) < 300
    assert len(looked_at) < 50
