"""ZooKeeper's raw nodes in memory, with writes of chosen fates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pulsark.errors import OutcomeUnknownError
from pulsark.metadata.zookeeper.nodes import (
    ANY,
    VERSION_MAX,
    CreateNode,
    DeleteNode,
    EphemeralParentError,
    Node,
    NodeError,
    NodeExistsError,
    NodeVersionError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Result,
    SetNode,
)
from tests.support.faulty_metadata import Fate

T = TypeVar("T")


def new_node(data: bytes, owner: int, zxid: int) -> Node:
    return Node(data, 0, owner, 0, zxid, zxid, 0)


@dataclass
class MemoryZooKeeper:
    """One server and its only client."""

    nodes: dict[str, Node] = field(default_factory=lambda: {"": new_node(b"", 0, 0)})
    counters: dict[str, int] = field(default_factory=dict)
    """By the prefix of sequential nodes, the next number."""
    fates: deque[Fate] = field(default_factory=deque)
    """Of the next writes: done, or unheard. All later ones are answered."""
    zxid: int = 0
    _watches: dict[str, list[Callable[[], None]]] = field(default_factory=dict)
    _regained: list[Callable[[], None]] = field(default_factory=list)

    def on_regained(self, listener: Callable[[], None]) -> None:
        self._regained.append(listener)

    def lose_connection(self) -> None:
        """Watches are gone."""
        self._watches.clear()
        for listener in self._regained:
            listener()

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        await asyncio.sleep(0)
        self._watch(path, changed)
        return self.nodes.get(path)

    async def exists(self, path: str, changed: Callable[[], None]) -> bool:
        return await self.get(path, changed) is not None

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        await asyncio.sleep(0)
        if path not in self.nodes:
            raise NoNodeError(path)
        self._watch(path + "/", changed)
        return [p.rpartition("/")[2] for p in self.nodes if p and p.rpartition("/")[0] == path]

    async def sync(self) -> None:
        await asyncio.sleep(0)
        self.zxid += 1

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        operation = CreateNode(path, data, ephemeral, sequential)
        return await self._write(lambda: self._create(operation))

    def _create(self, operation: CreateNode) -> str:
        path = name = operation.path
        parent = path.rpartition("/")[0]
        if parent not in self.nodes:
            raise NoNodeError(path)
        if operation.sequential:
            number = self.counters.get(path, 0)
            self.counters[path] = number + 1
            name = f"{path}{number:010d}"
        if name in self.nodes:
            raise NodeExistsError(path)
        if self.nodes[parent].owner:
            raise EphemeralParentError(path)
        self.zxid += 1
        self.nodes[name] = new_node(operation.data, int(operation.ephemeral), self.zxid)
        self._count(parent, 1)
        self._tell(name, parent + "/")
        return name

    async def make(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for depth in range(len(parts)):
            node = "/" + "/".join(parts[: depth + 1])
            if node not in self.nodes:
                with suppress(NodeExistsError):
                    await self.create(node)

    async def set(self, path: str, data: bytes, version: int = ANY) -> int:
        return await self._write(lambda: self._set(SetNode(path, data, version)))

    def _set(self, operation: SetNode) -> int:
        path = operation.path
        found = self._found(path, operation.version)
        self.zxid += 1
        self.nodes[path] = found._replace(
            data=operation.data, version=found.version + 1, changed=self.zxid
        )
        self._tell(path)
        return found.version + 1

    async def delete(self, path: str, version: int = ANY) -> None:
        await self._write(lambda: self._delete(DeleteNode(path, version)))

    def _delete(self, operation: DeleteNode) -> None:
        path = operation.path
        if self._found(path, operation.version).children:
            raise NotEmptyError(path)
        self.zxid += 1
        del self.nodes[path]
        parent = path.rpartition("/")[0]
        self._count(parent, -1)
        self._tell(path, parent + "/")

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        def change() -> list[Result]:
            before = dict(self.nodes)
            results: list[Result] = []
            for index, each in enumerate(operations):
                try:
                    results.append(self._apply(each))
                except NodeError as e:
                    self.nodes = before
                    e.index = index
                    raise
            return results

        return await self._write(change)

    def _apply(self, operation: Operation) -> Result:
        if isinstance(operation, CreateNode):
            return self._create(operation)
        if isinstance(operation, SetNode):
            return self._set(operation)
        if isinstance(operation, DeleteNode):
            return self._delete(operation)
        self._found(operation.path, operation.version)
        return None

    def _found(self, path: str, version: int) -> Node:
        assert ANY <= version <= VERSION_MAX, f"{path}: a request cannot tell version {version}"
        found = self.nodes.get(path)
        if found is None:
            raise NoNodeError(path)
        if version not in (ANY, found.version):
            raise NodeVersionError(path)
        return found

    def _count(self, path: str, more: int) -> None:
        old = self.nodes[path]
        self.nodes[path] = old._replace(
            children=old.children + more,
            created_children=old.created_children + max(more, 0),
        )

    def _watch(self, where: str, changed: Callable[[], None] | None) -> None:
        if changed is not None:
            self._watches.setdefault(where, []).append(changed)

    def _tell(self, *where: str) -> None:
        for each in where:
            for changed in self._watches.pop(each, ()):
                changed()

    async def _write(self, write: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        fate = self.fates.popleft() if self.fates else Fate.DONE
        if fate is Fate.NEVER:
            raise OutcomeUnknownError("no answer")
        result = write()
        if fate is Fate.UNHEARD:
            raise OutcomeUnknownError("no answer")
        return result
