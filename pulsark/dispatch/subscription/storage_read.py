"""A subscription's reads from storage: one at a time, tried again until it works."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import CorruptEntryError, trace_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.dispatch.model.entry import Entry
    from pulsark.wire.position import Position

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
ABOUT_DAMAGE = (
    "`pulsark tables repair TOPIC` says what of its table is lost, `pulsark doctor --data-dir DIR` "
    "what of a journal"
)


class StorageRead:
    """Whether a read is under way, and what becomes of it.

    A cancelled read has no effect. ``retry`` is called some time after one that failed: without
    another attempt the subscription would stand still for ever.
    """

    __slots__ = ("_complaint", "_name", "_retry", "position", "task")

    def __init__(self, name: object, retry: Callable[[], None]) -> None:
        self.task: asyncio.Task[None] | None = None
        """The read that is under way."""
        self.position: Position | None = None
        """Where the last read began."""
        self._name = name
        self._retry = retry
        self._complaint = ""
        """Why the last read failed, which is logged once."""

    def start(
        self,
        position: Position,
        read: Callable[[], Awaitable[list[Entry]]],
        use: Callable[[list[Entry]], None],
    ) -> None:
        """Read entries from ``position`` on and ``use`` them. No other read may be under way."""
        self.position = position
        self.task = asyncio.get_running_loop().create_task(self._run(position, read, use))

    def cancel(self) -> None:
        """Nothing is to become of the read that is under way, if there is one."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    async def _run(
        self,
        position: Position,
        read: Callable[[], Awaitable[list[Entry]]],
        use: Callable[[list[Entry]], None],
    ) -> None:
        entries = None
        try:
            entries = await read()
            self._complaint = ""
        except Exception as error:  # noqa: BLE001 - logged; the read is tried again
            self._complain(position, error)
        if entries is None:
            await asyncio.sleep(RETRY_SECONDS)
        if self.task is not asyncio.current_task():  # cancelled; ``read`` did not end by that
            return
        self.task = None
        if entries is None:
            self._retry()
        else:
            use(entries)

    def _complain(self, position: Position, error: Exception) -> None:
        complaint = f"{type(error).__name__}: {error}"
        if isinstance(error, CorruptEntryError):
            complaint += f". {ABOUT_DAMAGE}"
        if complaint != self._complaint:
            self._complaint = complaint
            log.warning(
                "%s cannot read entries from %s on, trying again every %g s: %s",
                self._name,
                position,
                RETRY_SECONDS,
                complaint,
                exc_info=trace_of(error),
            )
