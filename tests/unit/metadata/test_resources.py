"""Clusters, tenants, namespaces and partitioned topics over a store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import BadVersionError, ClientError, MetadataError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.namespaces import check_boundaries, even_boundaries
from pulsark.metadata.records import (
    AlreadyExistsError,
    DoesNotExistError,
    InUseError,
    InvalidResourceError,
)
from pulsark.metadata.resources import KEEP_EVERYTHING, Resources, Tenant
from pulsark.runtime import Runtime
from pulsark.wire.topic_name import TopicName

URLS = {"serviceUrl": "http://h:8080", "brokerServiceUrl": "pulsar://h:6650"}
TOPIC = TopicName.parse("persistent://public/default/a b%c")


def on_store(test: Callable[[Resources, MemoryMetadataStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = MemoryMetadataStore()
        resources = Resources(store, Runtime())
        await resources.initialize("standalone", URLS)
        await test(resources, store)

    asyncio.run(run())


@pytest.mark.feature("F67")
def test_a_new_instance_has_what_clients_expect() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        assert await resources.clusters.list() == ["standalone"]
        assert await resources.tenants.list() == ["public", "pulsar"]
        assert await resources.tenants.get("public") == Tenant((), ("standalone",))
        assert await resources.namespaces.list("public") == ["public/default"]
        namespace = await resources.namespaces.get("public/default")
        assert namespace is not None
        assert namespace.replication_clusters == ("standalone",)
        assert namespace.bundles == [
            "0x00000000_0x40000000",
            "0x40000000_0x80000000",
            "0x80000000_0xc0000000",
            "0xc0000000_0xffffffff",
        ]

    on_store(check)


def test_a_second_start_changes_only_the_addresses() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        await resources.tenants.update("public", Tenant(("root",), ("standalone",)))
        data = await resources.clusters.get("standalone")
        await resources.clusters.update("standalone", {**(data or {}), "listenerName": "x"})
        await resources.initialize(
            "standalone", {"serviceUrl": "http://h:9090", "brokerServiceUrl": "pulsar://h:7777"}
        )
        assert await resources.clusters.get("standalone") == {
            "serviceUrl": "http://h:9090",
            "brokerServiceUrl": "pulsar://h:7777",
            "listenerName": "x",
        }
        assert await resources.tenants.get("public") == Tenant(("root",), ("standalone",))

    on_store(check)


def test_brokers_may_start_at_the_same_time() -> None:
    async def run() -> None:
        store = MemoryMetadataStore()
        await asyncio.gather(*(Resources(store, Runtime()).initialize("c", URLS) for _ in "1234"))

    asyncio.run(run())


Step = Callable[[Resources], Coroutine[Any, Any, Any]]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (lambda r: r.clusters.create("standalone", {}), AlreadyExistsError),
        (lambda r: r.clusters.update("none", {}), DoesNotExistError),
        (lambda r: r.clusters.delete("none"), DoesNotExistError),
        (lambda r: r.tenants.create("public", Tenant()), AlreadyExistsError),
        (lambda r: r.tenants.create("../x", Tenant()), ClientError),
        (lambda r: r.tenants.create("", Tenant()), ClientError),
        (lambda r: r.tenants.update("none", Tenant()), DoesNotExistError),
        (lambda r: r.tenants.delete("none"), DoesNotExistError),
        (lambda r: r.tenants.delete("public"), InUseError),
        (lambda r: r.namespaces.create("public/default"), AlreadyExistsError),
        (lambda r: r.namespaces.create("none/n"), DoesNotExistError),
        (lambda r: r.namespaces.create("public/.."), ClientError),
        (lambda r: r.namespaces.create("public/c/n"), InvalidResourceError),
        (lambda r: r.namespaces.create("public"), ClientError),
        (lambda r: r.namespaces.update("public/none", lambda n: n), DoesNotExistError),
        (lambda r: r.namespaces.finish_delete("public/none"), DoesNotExistError),
        (lambda r: r.partitioned_topics.create(TOPIC, 0), InvalidResourceError),
        (lambda r: r.partitioned_topics.create(TOPIC, 10_001), InvalidResourceError),
        (lambda r: r.partitioned_topics.update(TOPIC, 2), DoesNotExistError),
        (lambda r: r.partitioned_topics.delete(TOPIC), DoesNotExistError),
    ],
)
def test_what_is_refused(step: Step, error: type[Exception]) -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        with pytest.raises(error):
            await step(resources)

    on_store(check)


@pytest.mark.feature("F79")
def test_a_tenant_comes_and_goes() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        await resources.tenants.create("t", Tenant(("b", "a"), ("standalone",)))
        assert await resources.tenants.get("t") == Tenant(("a", "b"), ("standalone",))
        await resources.namespaces.create("t/n", boundaries=["0x0", "0x80000000", "0xffffffff"])
        with pytest.raises(InUseError):
            await resources.tenants.delete("t")
        await resources.namespaces.begin_delete("t/n")
        await resources.namespaces.finish_delete("t/n")
        await resources.tenants.delete("t")
        assert await resources.tenants.get("t") is None
        assert await resources.tenants.list() == ["public", "pulsar"]

    on_store(check)


def test_a_namespace_that_is_being_deleted_is_not_there() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        namespaces = resources.namespaces
        await namespaces.begin_delete("public/default")
        assert await namespaces.get("public/default") is None
        assert await namespaces.list("public") == []
        with pytest.raises(DoesNotExistError):
            await namespaces.update("public/default", lambda n: n)
        await namespaces.cancel_delete("public/default")
        assert await namespaces.get("public/default") is not None
        await namespaces.begin_delete("public/default")
        await namespaces.create("public/default")  # as after a crash in between
        assert await namespaces.get("public/default") is not None
        with pytest.raises(DoesNotExistError):
            await namespaces.finish_delete("public/default")  # the other one is no more
        assert await namespaces.get("public/default") is not None

    on_store(check)


def test_a_namespace_is_never_without_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one is created while the other is deleted, in all orders of their steps."""

    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        for pause in range(12):
            await resources.tenants.create(f"t{pause}", Tenant((), ("standalone",)))

            async def delete(tenant: str, turns: int) -> None:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await resources.tenants.delete(tenant)

            created, deleted = await asyncio.gather(
                resources.namespaces.create(f"t{pause}/n"),
                delete(f"t{pause}", pause),
                return_exceptions=True,
            )
            assert isinstance(created, DoesNotExistError) or isinstance(deleted, InUseError)
            there = await resources.tenants.get(f"t{pause}") is not None
            assert there is (deleted is not None)
            assert (await store.get(f"/admin/policies/t{pause}/n") is not None) is there

    for waits in range(
        4
    ):  # before the deletion's write, which comes after its look at the children

        async def slow(store: MemoryMetadataStore, path: str, waits: int = waits) -> list[str]:
            found = store.tree.children(path)
            for _ in range(waits):
                await asyncio.sleep(0)
            return found

        monkeypatch.setattr(MemoryMetadataStore, "children", slow)
        on_store(check)


def test_changes_of_two_writers_both_count() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        put, lost = store.put, []

        async def put_after_another(path: str, *args: Any, **kwargs: Any) -> int:
            if not lost:
                lost.append(path)
                raise BadVersionError(path, "has another version")
            return await put(path, *args, **kwargs)

        store.put = put_after_another  # type: ignore[method-assign]
        await resources.namespaces.update(
            "public/default", lambda n: replace(n, policies={**n.policies, "a": 1})
        )
        namespace = await resources.namespaces.get("public/default")
        assert namespace is not None
        assert namespace.policies == {**KEEP_EVERYTHING, "a": 1}
        assert lost == ["/admin/policies/public/default"]

    on_store(check)


def test_partitioned_topics() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        topics = resources.partitioned_topics
        created = await topics.create(TOPIC, 3, {"k": "v"})
        assert await topics.get(TOPIC) == created
        assert created.partitions == 3
        assert len(created.topic_id) == 32
        assert await topics.list("public/default") == [TOPIC]
        with pytest.raises(AlreadyExistsError):
            await topics.create(TOPIC, 3)
        with pytest.raises(InvalidResourceError):
            await topics.update(TOPIC, 3)
        await topics.update(TOPIC, 4)
        await topics.change_properties(TOPIC, lambda _: {"k": "w"})
        grown = await topics.get(TOPIC)
        assert grown == replace(created, partitions=4, properties={"k": "w"})
        with pytest.raises(DoesNotExistError):
            await topics.delete(TOPIC)  # it is another one: this one's deletion has not begun
        await topics.begin_delete(TOPIC)
        await topics.delete(TOPIC)
        assert await topics.get(TOPIC) is None
        again = await topics.create(TOPIC, 1)
        assert again.topic_id != created.topic_id

    on_store(check)


@pytest.mark.parametrize("what", ["begin_delete", "delete"])
def test_two_brokers_that_delete_a_partitioned_topic_do_not_disturb_each_other(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        topics, delete = resources.partitioned_topics, store.delete

        async def late(path: str, expected_version: int) -> None:
            monkeypatch.undo()
            await getattr(topics, what)(TOPIC)  # at the other broker
            await delete(path, expected_version)

        await topics.create(TOPIC, 3)
        await topics.begin_delete(TOPIC)
        monkeypatch.setattr(store, "delete", late)
        with suppress(DoesNotExistError):
            await topics.delete(TOPIC)
        assert await topics.record(TOPIC) is None

    on_store(check)


def test_records_of_a_newer_program_are_not_guessed_at() -> None:
    async def check(resources: Resources, store: MemoryMetadataStore) -> None:
        await store.put("/admin/policies/public", b'{"version": 2}')
        with pytest.raises(MetadataError, match="newer"):
            await resources.tenants.get("public")

    on_store(check)


@given(st.integers(1, 1024))
def test_even_boundaries_cover_the_hashes(bundles: int) -> None:
    edges = even_boundaries(bundles)
    assert len(edges) == bundles + 1
    assert check_boundaries(edges) == edges


@pytest.mark.parametrize(
    "edges",
    [
        [],
        ["0x00000000"],
        ["0x00000000", "0xfffffffe"],
        ["0x00000001", "0xffffffff"],
        ["0x00000000", "0x80000000", "0x80000000", "0xffffffff"],
        ["0x00000000", "0x1ffffffff"],
        ["zero", "0xffffffff"],
    ],
)
def test_boundaries_that_do_not_cover_the_hashes(edges: list[str]) -> None:
    with pytest.raises(InvalidResourceError):
        check_boundaries(edges)
