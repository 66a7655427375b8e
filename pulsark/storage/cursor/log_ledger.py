"""One ledger of the cursor log, and the groups of operations that wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from pulsark.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.runtime import Done
    from pulsark.storage.cursor.cursor import Cursor, Reached
    from pulsark.storage.ledger.writer import LedgerWriter


class CommitGroup:
    """Operations that become durable together, and who waits for them.

    ``waits`` counts the events that must happen first; ``release`` reports one of them.
    """

    __slots__ = ("_dones", "_reached", "finished", "waits")

    def __init__(
        self, dones: list[Done], reached: list[tuple[Cursor, Reached]], waits: int
    ) -> None:
        self._dones = dones
        self._reached = reached
        self.waits = waits
        self.finished = False

    def also(self, dones: list[Done], reached: list[tuple[Cursor, Reached]]) -> None:
        """More to do at the same moment."""
        self._dones += dones
        self._reached += reached

    def release(self) -> None:
        """One of the events happened."""
        self.waits -= 1
        if self.waits == 0 and not self.finished:
            for cursor, point in self._reached:
                cursor.durably_reached = point
            self._finish(None)

    def fail(self, error: BaseException) -> list[tuple[Cursor, Reached]]:
        """It is not known to be durable, and this group will not be waited for any more.

        Returns what it would have made durable.
        """
        reached = self._reached
        if not self.finished:
            self._finish(error)
        return reached

    def _finish(self, error: BaseException | None) -> None:
        self.finished = True
        dones, self._dones, self._reached = self._dones, [], []
        for done in dones:
            done(error)


class CursorLedger:
    """A ledger being written. It is the listener of its writer."""

    def __init__(self, on_failure: Callable[[CursorLedger], None]) -> None:
        self.writer: LedgerWriter
        """Set once the ledger is created."""
        self.bytes = 0
        """Appended so far."""
        self.snapshot_bytes = 0
        """How much of it is the snapshot at its head."""
        self.error: StorageError | None = None
        self._on_failure = on_failure
        self._groups: deque[tuple[int, CommitGroup]] = deque()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def append(self, entries: Sequence[bytes], group: CommitGroup | None = None) -> int:
        """Append entries, at least one; ``group`` is released once they are durable.

        Returns the id of the last entry. If the ledger has failed the group stays waiting.
        """
        self.bytes += sum(map(len, entries))
        try:
            last = self.writer.append(entries) + len(entries) - 1
        except StorageError as error:
            if self.error is None:
                self.error = error
                asyncio.get_running_loop().call_soon(self._on_failure, self)
            last = 2**62
        if group is not None:
            self._groups.append((last, group))
        return last

    async def confirmed(self, entry_id: int) -> None:
        """Return once an entry is durable, or raise the error of the ledger."""
        if self.error is not None:
            raise self.error
        if self.writer.last_confirmed >= entry_id:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((entry_id, future))
        await future

    def take_groups(self) -> list[CommitGroup]:
        """The groups that still wait for this ledger; it forgets them."""
        groups = [group for _, group in self._groups]
        self._groups.clear()
        return groups

    def ledger_confirmed(self, ledger_id: int, last_confirmed: int) -> None:
        """Entries became durable."""
        groups = self._groups
        while groups and groups[0][0] <= last_confirmed:
            groups.popleft()[1].release()
        waiters = self._waiters
        while waiters and waiters[0][0] <= last_confirmed:
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(None)

    def ledger_failed(self, ledger_id: int, error: StorageError) -> None:
        """The writer gave up."""
        self.error = error
        for _, future in self._waiters:
            if not future.done():
                future.set_exception(error)
        self._waiters.clear()
        self._on_failure(self)
