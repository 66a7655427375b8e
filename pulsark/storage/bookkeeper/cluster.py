"""A new cluster: the nodes that bookies expect before the first of them starts."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from pulsark.metadata.zookeeper.nodes import CreateNode, NodeExistsError
from pulsark.storage.bookkeeper.paths import (
    AVAILABLE,
    INSTANCE_ID,
    LAYOUT,
    LAYOUT_VALUE,
    READ_ONLY,
)

if TYPE_CHECKING:
    from pulsark.metadata.zookeeper.lasting import RawNodes


async def new_cluster(zookeeper: RawNodes, root: str) -> None:
    """Let there be a cluster below ``root``; one that is there stays as it is.

    Bookies keep the instance's id and refuse to start in another cluster.
    """
    await zookeeper.make(root)
    with suppress(NodeExistsError):
        await zookeeper.multi(
            [
                CreateNode(f"{root}/{INSTANCE_ID}", str(uuid4()).encode()),
                CreateNode(f"{root}/{AVAILABLE}"),
                CreateNode(f"{root}/{READ_ONLY}"),
                CreateNode(f"{root}/{LAYOUT}", LAYOUT_VALUE),
            ]
        )
