"""Changes of a managed ledger: one after the other, and each to its end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pulsark.errors import LedgerFencedError, MetadataError, StorageError
from pulsark.storage.managed_ledger.states import Event, UnknownEventError
from pulsark.tasks import to_its_end, unattended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from pulsark.storage.managed_ledger.append_queue import AppendQueue
    from pulsark.storage.managed_ledger.last_ledger import LastLedger

T = TypeVar("T")


class Changes:
    """The changes of one managed ledger. ``after`` is called after each, and may start the next."""

    def __init__(
        self, path: str, last: LastLedger, appends: AppendQueue, after: Callable[[], None]
    ) -> None:
        self._path = path
        self._last = last
        self._appends = appends
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._one = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_free(self) -> bool:
        """Whether a change may be started."""
        return self._task is None

    @property
    def is_quiet(self) -> bool:
        """Whether there is no change under way, nor one that was started."""
        return self._task is None and not self._one.locked()

    def may_change(self, *, terminated: bool = False) -> bool:
        """Whether orders are taken."""
        return self._last.refusal is None or (terminated and self._last.is_terminated)

    def start(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Make a change without a caller that waits; only if it ``is_free``."""
        self._task = unattended(self._run(step), f"{self._path}: a change")

    def start_later(self, seconds: float, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a change after a while, if there is none then. One waits at a time."""

        def start() -> None:
            self._timer = None
            if self.is_free and self._last.refusal is None:
                self.start(step)

        if self._timer is None:
            self._timer = self._loop.call_later(seconds, start)

    async def _run(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        last = self._last
        async with self._one:
            try:
                if last.refusal is None:
                    await step()
            except LedgerFencedError as e:
                last.stop(Event.FENCED, e)
            except (StorageError, MetadataError) as e:
                last.troubles.tell(self._path, str(e))
                last.note_failure(e)
                if last.writer is None:
                    self._appends.fail(e)
            except Exception as e:
                last.stop(Event.BUG, StorageError(f"{self._path} stopped: {e!r}"))
                raise
            self._task = None
            self._after()

    async def order(
        self, step: Callable[[], Coroutine[Any, Any, T]], *, terminated: bool = False
    ) -> T:
        """Make a change; raises if nothing may change any more.

        With ``terminated`` it may also of a topic to which nothing is appended any more.

        Goes to its end even if the caller is cancelled: a record that changed unnoticed would
        look as if another owner had done it.
        """

        async def run() -> T:
            async with self.alone(terminated=terminated):
                return await step()

        return await to_its_end(run())

    @asynccontextmanager
    async def alone(self, *, terminated: bool = False) -> AsyncIterator[None]:
        """Nothing else changes as long as it lasts."""
        last = self._last
        async with self._one:
            if last.refusal is not None and not self.may_change(terminated=terminated):
                raise last.refusal
            try:
                with self._unless_bug():
                    yield
            finally:
                if not self._loop.is_closed():
                    self._after()

    async def end(
        self, step: Callable[[], Coroutine[Any, Any, None]], *, of_owner: bool = False
    ) -> None:
        """Make the last change, whatever is refused already.

        ``of_owner``: only if no other broker has the managed ledger.
        """

        async def run() -> None:
            async with self._one:
                refusal = self._last.refusal
                if of_owner and isinstance(refusal, LedgerFencedError):
                    raise refusal
                with self._unless_bug():
                    await step()

        await to_its_end(run())

    @contextmanager
    def _unless_bug(self) -> Iterator[None]:
        """Nothing is stored any more once there was an event that should not have been."""
        try:
            yield
        except UnknownEventError as e:
            if e.life is self._last.life:
                self._last.stop(Event.BUG, StorageError(f"{self._path} stopped: {e}"))
            raise
