"""What decisions are based on is kept, and follows the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any

from pulsark.errors import MetadataError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.resources import Resources, Tenant
from pulsark.metadata.store import Versioned
from pulsark.runtime import Runtime
from pulsark.security import grants
from pulsark.security.decisions import Target
from pulsark.security.facts import Rules
from pulsark.security.known_facts import KnownFacts

WEB = Target.of_namespace("acme/web")
RULES = Rules(frozenset({"root"}))


class CountingStore(MemoryMetadataStore):
    """Counts reads, and holds or fails them if a test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.gate: asyncio.Event | None = None
        self.broken = False

    async def get(self, path: str) -> Versioned | None:
        self.reads.append(path)
        found = await super().get(path)
        if self.gate is not None:
            await self.gate.wait()
        if self.broken:
            raise MetadataError("the store is gone")
        return found


class Bench:
    """A tenant, a namespace, and what is known of them."""

    def __init__(self, most: int = 1000) -> None:
        self.store = CountingStore()
        self.resources = Resources(self.store, Runtime())
        self.facts = KnownFacts(RULES, self.store, self.resources, most=most)

    async def make(self, namespace: str = "acme/web") -> None:
        tenant = namespace.partition("/")[0]
        if await self.resources.tenants.get(tenant) is None:
            await self.resources.tenants.create(tenant, Tenant(("boss",)))
        await self.resources.namespaces.create(namespace)

    async def grant(self, role: str) -> None:
        policies: dict[str, Any] = {}
        grants.grant(policies, role, ["produce"])
        await self.resources.namespaces.update("acme/web", lambda n: replace(n, policies=policies))


def loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    return run


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def may_produce(bench: Bench, role: str) -> bool | None:
    found = bench.facts.of(WEB)
    if found is None or found.grants is None:
        return None
    return found.grants.namespace.gives(role, frozenset({"produce"}))


@loop
async def test_what_was_read_once_is_known_at_once() -> None:
    bench = Bench()
    await bench.make()
    bench.facts.start()
    assert bench.facts.of(WEB) is None
    found = await bench.facts.read(WEB)
    assert found.admins == {"boss"}
    assert found.rules == RULES
    await turns()
    assert bench.facts.of(WEB) is not None
    reads = len(bench.store.reads)
    assert (await bench.facts.read(WEB)).admins == {"boss"}
    assert len(bench.store.reads) == reads


@loop
async def test_nothing_is_read_for_what_is_in_no_tenant() -> None:
    bench = Bench()
    bench.facts.start()
    assert bench.facts.of(Target()) == await bench.facts.read(Target())
    assert bench.store.reads == []


@loop
async def test_changes_of_a_namespace_and_of_a_tenant_are_seen() -> None:
    bench = Bench()
    await bench.make()
    bench.facts.start()
    await bench.facts.read(WEB)
    await turns()
    assert may_produce(bench, "writer") is False
    await bench.grant("writer")
    await turns()
    assert bench.facts.of(WEB) is None
    await bench.facts.read(WEB)
    await turns()
    assert may_produce(bench, "writer") is True
    await bench.resources.tenants.update("acme", Tenant(("other",)))
    await turns()
    assert (await bench.facts.read(WEB)).admins == {"other"}


@loop
async def test_what_is_missing_is_remembered_until_it_is_made() -> None:
    bench = Bench()
    bench.facts.start()
    found = await bench.facts.read(WEB)
    assert found.admins is None
    assert found.grants is None
    await turns()
    assert bench.facts.of(WEB) == found
    await bench.make()
    await turns()
    assert (await bench.facts.read(WEB)).admins == {"boss"}


@loop
async def test_what_changes_while_it_is_read_is_not_kept() -> None:
    bench = Bench()
    await bench.make()
    bench.facts.start()
    await bench.facts.read(Target("acme"))
    bench.store.gate = asyncio.Event()
    reading = asyncio.create_task(bench.facts.read(WEB))
    await turns()
    gate, bench.store.gate = bench.store.gate, None
    await bench.grant("writer")
    await turns()
    gate.set()
    await reading
    await turns()
    assert bench.facts.of(WEB) is None
    await bench.facts.read(WEB)
    await turns()
    assert may_produce(bench, "writer") is True


@loop
async def test_many_who_ask_at_once_are_one_read_and_one_who_leaves_takes_it_from_none() -> None:
    bench = Bench()
    await bench.make()
    bench.facts.start()
    bench.store.gate = asyncio.Event()
    bench.store.reads.clear()
    asking = [asyncio.create_task(bench.facts.read(Target("acme"))) for _ in range(50)]
    await turns()
    asking[0].cancel()
    await turns()
    bench.store.gate.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert all(one == found[1] for one in found[2:])
    assert bench.store.reads == ["/admin/policies/acme"]


@loop
async def test_a_store_that_cannot_be_read_is_an_error_and_is_asked_again() -> None:
    bench = Bench()
    await bench.make()
    bench.facts.start()
    bench.store.broken = True
    try:
        await bench.facts.read(WEB)
    except MetadataError:
        pass
    else:
        raise AssertionError("facts without a store")
    await turns()
    bench.store.broken = False
    assert (await bench.facts.read(WEB)).admins == {"boss"}


@loop
async def test_where_changes_were_missed_everything_is_read_again() -> None:
    bench = Bench()
    await bench.make()
    bench.facts.start()
    await bench.facts.read(WEB)
    await turns()
    assert bench.facts.of(WEB) is not None
    bench.store.tree.watches.tell_missed()
    await turns()
    assert bench.facts.of(WEB) is None


@loop
async def test_no_more_is_kept_than_the_limit_and_what_is_used_stays() -> None:
    bench = Bench(most=20)
    await bench.make()
    bench.facts.start()
    await bench.facts.read(WEB)
    for number in range(100):
        await bench.facts.read(Target.of_namespace(f"none/n{number}"))
        await turns(2)
        assert bench.facts.of(WEB) is not None
    kept = [n for n in range(100) if bench.facts.of(Target.of_namespace(f"none/n{n}"))]
    assert 1 < len(kept) <= 20
    assert kept[-1] == 99


@loop
async def test_nothing_is_kept_where_no_change_would_be_noticed() -> None:
    bench = Bench()
    await bench.make()
    await bench.facts.read(WEB)
    await turns()
    assert bench.facts.of(WEB) is None
    bench.facts.start()
    await bench.facts.read(WEB)
    await turns()
    bench.facts.close()
    assert bench.facts.of(WEB) is None
