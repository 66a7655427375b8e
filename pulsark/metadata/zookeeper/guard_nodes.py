"""The guard of a bundle as checks of ZooKeeper's nodes, for writes beside the metadata store.

Ledgers that live in BookKeeper's nodes are not written by the metadata store. Where both are in one
ZooKeeper, a multi that begins with these checks is refused once another broker is the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.based_values import decode
from pulsark.metadata.zookeeper.instance import decode_instance
from pulsark.metadata.zookeeper.layout import INSTANCE, Layout, part_node, part_of
from pulsark.metadata.zookeeper.nodes import VERSION_MAX, CheckNode

if TYPE_CHECKING:
    from pulsark.metadata.changes import Check
    from pulsark.metadata.zookeeper.lasting import RawNodes


class GuardNodes:
    """Guards of one metadata store, as another client of its ZooKeeper sees them."""

    def __init__(self, nodes: RawNodes, root: str, layout: Layout) -> None:
        self._nodes = nodes
        self._root = root
        self._layout = layout

    @classmethod
    async def find(cls, nodes: RawNodes, root: str, identity: str) -> GuardNodes | None:
        """Those of the store with this identity; ``None`` if it is not below this root here."""
        found = await nodes.get(root + INSTANCE)
        if found is None:
            return None
        instance = decode_instance(found.data, f"{root}{INSTANCE}")
        if instance.identity != identity:
            return None
        return cls(nodes, root, Layout(instance.directories))

    async def checks(self, guard: Check) -> list[CheckNode] | None:
        """Hold only as long as the guard does; ``None`` if its node cannot have its version.

        They may be outdated at once: deletions in the same part of the tree do that, too.
        """
        node = self._layout.node(guard.path)
        part = self._root + part_node(part_of(node))
        await self._nodes.sync()
        # In this order: who deletes the node and makes it anew changes the part after it was read.
        deletions = await self._nodes.get(part)
        found = await self._nodes.get(self._root + node)
        stored = None if found is None else decode(guard.path, found.data)
        if deletions is None or stored is None:
            return None
        version = guard.expected_version - stored.base
        if not 0 <= version <= VERSION_MAX:  # made anew since: -1 would be any version
            return None
        return [CheckNode(part, deletions.version), CheckNode(self._root + node, version)]
