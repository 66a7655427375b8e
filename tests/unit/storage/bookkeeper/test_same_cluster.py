"""A broker's bookies are those that its metadata store knows: others have ledgers of equal ids."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from pulsark.errors import ConfigError, MetadataError
from pulsark.metadata.memory import MemoryMetadataStore, MemoryTree
from pulsark.metadata.paths import BOOKKEEPER
from pulsark.metadata.store import ABSENT
from pulsark.storage.bookkeeper.cluster import new_cluster
from pulsark.storage.bookkeeper.same_cluster import check_same_cluster
from tests.support.memory_zookeeper import MemoryZooKeeper


async def zookeeper_with(*roots: str) -> MemoryZooKeeper:
    zookeeper = MemoryZooKeeper()
    for root in roots:
        await new_cluster(zookeeper, root)
    return zookeeper


def test_another_cluster_is_refused_and_the_first_one_is_learned() -> None:
    async def main() -> None:
        tree = MemoryTree()
        zookeeper = await zookeeper_with("/one/ledgers", "/two/ledgers")
        for _ in range(2):  # the first broker, and any later one
            store = MemoryMetadataStore(tree)
            await check_same_cluster(store, zookeeper, "/one/ledgers", "zk:one/ledgers")
        ids = [(await zookeeper.get(f"/{n}/ledgers/INSTANCEID")) for n in ("one", "two")]
        one, two = (str(UUID(node.data.decode())) for node in ids if node is not None)
        with pytest.raises(ConfigError, match=f"at zk:two/ledgers is {two}, .* in {one}"):
            await check_same_cluster(store, zookeeper, "/two/ledgers", "zk:two/ledgers")

    asyncio.run(main())


def test_an_address_without_a_cluster_is_refused_and_nothing_is_noted() -> None:
    async def main() -> None:
        store, zookeeper = MemoryMetadataStore(), await zookeeper_with("/ledgers")
        with pytest.raises(ConfigError, match="there is no BookKeeper at zk:none"):
            await check_same_cluster(store, zookeeper, "/none", "zk:none")
        assert await store.get(BOOKKEEPER) is None

    asyncio.run(main())


def test_brokers_that_begin_at_once_agree_on_one() -> None:
    async def main() -> None:
        tree, zookeeper = MemoryTree(), await zookeeper_with("/one", "/two")
        stores = [MemoryMetadataStore(tree) for _ in range(2)]
        found = await asyncio.gather(
            *(
                check_same_cluster(store, zookeeper, root, root)
                for store, root in zip(stores, ("/one", "/two"), strict=True)
            ),
            return_exceptions=True,
        )
        assert sorted(type(each) for each in found if each is not None) == [ConfigError]

    asyncio.run(main())


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"version": 1}'])
def test_a_record_that_cannot_be_read_is_no_answer(value: bytes) -> None:
    async def main() -> None:
        store, zookeeper = MemoryMetadataStore(), await zookeeper_with("/one")
        await store.put(BOOKKEEPER, value, ABSENT)
        with pytest.raises(MetadataError, match="/bookkeeper cannot be read"):
            await check_same_cluster(store, zookeeper, "/one", "/one")

    asyncio.run(main())
