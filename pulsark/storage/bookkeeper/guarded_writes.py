"""Writes of ledgers' nodes: those of one turn of the event loop share one multi, with their guard.

One multi is under way at a time for each guard; what is asked for meanwhile goes into the next one.
If ZooKeeper refuses a multi, nothing of it was done: who asked for the operation that it names is
told so, and the rest is sent again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataRefusedError, OutcomeUnknownError
from pulsark.metadata.guarded import check_guard, guard_of
from pulsark.metadata.zookeeper.nodes import CreateNode, NodeError, NoNodeError, SetNode

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore
    from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
    from pulsark.metadata.zookeeper.lasting import RawNodes
    from pulsark.metadata.zookeeper.nodes import CheckNode, Operation, Result

AT_ONCE: Final = 100
BYTES_AT_ONCE: Final = 512 << 10
"""Most of one multi, unless a single operation has more: ZooKeeper takes it as one packet."""
ATTEMPTS: Final = 5


class _Write:
    """One operation that waits for its outcome."""

    __slots__ = ("future", "operation")

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    @property
    def size(self) -> int:
        operation = self.operation
        return len(operation.data) if isinstance(operation, CreateNode | SetNode) else 0


class GuardedWrites:
    """Those of one view of the metadata store, whose guard must hold."""

    def __init__(
        self, zookeeper: RawNodes, metadata: MetadataStore, guards: GuardNodes | None
    ) -> None:
        """``guards``: those that can be checked in the same commit, if they can."""
        self._zookeeper = zookeeper
        self._metadata = metadata
        self._guards = guards
        self._guard = guard_of(metadata)
        self._checks: list[CheckNode] | None = None
        """Those of the guard, as far as they are known."""
        self._queue: list[_Write] = []
        self._task: asyncio.Task[None] | None = None

    async def do(self, operation: Operation) -> Result:
        """Do it if the guard holds, which is checked in the same commit where that can be.

        ``NodeError``, ``OwnershipLostError``; other errors are those of ``ZooKeeperClient.multi``.
        """
        write = _Write(operation)
        self._queue.append(write)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        return await write.future

    async def _write_all(self) -> None:
        await asyncio.sleep(0)  # the rest of this turn
        while self._queue:
            batch = self._take()
            try:
                await self._write(batch)
            except Exception as error:  # noqa: BLE001 - each is told to those who wait
                _refuse(batch, error)
            except BaseException:
                _refuse([*batch, *self._queue], OutcomeUnknownError("the write was interrupted"))
                raise

    def _take(self) -> list[_Write]:
        count = size = 0
        for each in self._queue[:AT_ONCE]:
            size += each.size
            if count and size > BYTES_AT_ONCE:
                break
            count += 1
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    async def _write(self, batch: list[_Write]) -> None:
        outdated = 0
        while batch := [each for each in batch if not each.future.done()]:
            checks = await self._known_checks()
            if checks is not None:
                operations = [each.operation for each in batch]
                try:
                    results = await self._zookeeper.multi([*checks, *operations])
                except NodeError as error:
                    if error.index >= len(checks):
                        _tell(batch, error.index - len(checks), error)
                        continue
                else:
                    for each, result in zip(batch, results[len(checks) :], strict=True):
                        if not each.future.done():
                            each.future.set_result(result)
                    return
            # Another owner, or the checks are outdated: the metadata store knows.
            self._checks = None
            await check_guard(self._metadata)
            outdated += 1
            if outdated == ATTEMPTS:
                path = batch[0].operation.path
                raise MetadataRefusedError(f"{path}: who owns it changes all the time")

    async def _known_checks(self) -> list[CheckNode] | None:
        """What a multi begins with; ``None`` if that cannot be found."""
        if self._guard is None or self._guards is None:
            await check_guard(self._metadata)
            return []
        if self._checks is None:
            self._checks = await self._guards.checks(self._guard)
        return self._checks


def _tell(batch: list[_Write], index: int, error: NodeError) -> None:
    """One is refused; with it all that would create a node below the same missing parent."""
    refused = batch[index].operation
    _refuse([batch[index]], error)
    if isinstance(error, NoNodeError) and isinstance(refused, CreateNode):
        parent = refused.path.rpartition("/")[0]
        for each in batch:
            operation = each.operation
            if isinstance(operation, CreateNode) and operation.path.rpartition("/")[0] == parent:
                _refuse([each], NoNodeError(operation.path))


def _refuse(writes: list[_Write], error: BaseException) -> None:
    for each in writes:
        if not each.future.done():
            each.future.set_exception(error)
