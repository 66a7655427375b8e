"""Requests of one client that have to wait for something: each is a task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.connection import notices
from pulsark.errors import ClientError, PulsarkError, ServerError, internal_error
from pulsark.limits import (
    REQUEST_COUNTED_BYTES,
    REQUESTS_CROWDED_MAX,
    REQUESTS_UNDER_WAY_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from pulsark.dispatch.connection.output import Output
    from pulsark.dispatch.loop.defects import Defects
    from pulsark.dispatch.loop.request_turns import RequestTurns
    from pulsark.rates.shares import SharedBudget
    from pulsark.wire import pulsar_pb2 as pb


class PendingRequests:
    """What is under way for a connection. The failure of a request is its answer."""

    def __init__(
        self,
        defects: Defects,
        output: Output,
        turns: RequestTurns,
        owner: Callable[[], str],
        room: SharedBudget,
        ended: Callable[[], None],
    ) -> None:
        """``ended`` is called after each; ``owner`` says to which client its steps count.

        ``room`` is for the bytes of the large requests of all connections.
        """
        self.command: pb.BaseCommand | None = None
        """What is carried out at this moment: requests that begin now come from it."""
        self._room = room
        self._held: dict[asyncio.Task[Any], int] = {}
        """Bytes of large requests."""
        self._turns = turns
        self._line = f"{id(self):x}"
        self._owner = owner
        self._defects = defects
        self._output = output
        self._ended: Callable[[], None] | None = ended
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: dict[tuple[str, int], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def most(self) -> int:
        """How many may be under way. Those that wait for their turn take memory, too.

        They wait for the event loop, or for the client to read a large answer.
        """
        waits = self._turns.is_crowded or self._output.is_in_large_answer
        return REQUESTS_CROWDED_MAX if waits else REQUESTS_UNDER_WAY_MAX

    def when_calm(self, go_on: Callable[[], None]) -> None:
        """Call when more may be under way, if only the event loop is in the way."""
        if self._turns.is_crowded:
            self._turns.when_calm(go_on)

    def close(self) -> None:
        """The connection is gone, and with it the need for answers."""
        self._ended, self._owner = None, _nobody
        for task in self._tasks:
            task.cancel()

    def run(self, work: Coroutine[Any, Any, None], request_id: int) -> asyncio.Task[None]:
        """Run a request that awaits; a large one is refused while too many others wait."""
        owner = self._owner()
        held = self._taken(owner)
        if held is None:
            work.close()
            work, held = _refused(), 0

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if bytes_held := self._held.pop(task, 0):
                self._room.give_back(owner, bytes_held)
            guarded.close()  # if it was cancelled before it began
            work.close()
            if self._ended is not None:
                self._ended()

        guarded = self._guarded(work, request_id)
        task = self._loop.create_task(self._turns.run(guarded, lambda: owner, self._line))
        self._tasks.add(task)
        if held:
            self._held[task] = held
        task.add_done_callback(ended)
        return task

    def _taken(self, owner: str) -> int | None:
        """Return the bytes that a new request holds, or None if there is no room for them."""
        if self.command is None:  # another request has begun it, and hands over what it holds
            current = asyncio.current_task()
            return 0 if current is None else self._held.pop(current, 0)
        size = self.command.ByteSize()
        if size <= REQUEST_COUNTED_BYTES:
            return 0
        return size if self._room.take(owner, size) else None

    async def _guarded(self, work: Coroutine[Any, Any, None], request_id: int) -> None:
        try:
            await work
        except PulsarkError as error:
            self._refuse(request_id, error)
        except Exception as error:  # noqa: BLE001 - a defect: logged, and answered
            self._defects.report(error, "A request failed")
            self._refuse(request_id, internal_error())

    def _refuse(self, request_id: int, error: Exception) -> None:
        self._output.send(notices.request_error(request_id, error))

    def open(
        self, kind: str, client_id: int, request_id: int, work: Coroutine[Any, Any, None]
    ) -> None:
        """Run the creation of a producer or consumer; a second attempt has to wait for it.

        What ran before it under the same id, and opens it now, is no other attempt.
        """
        key = (kind, client_id)
        current = self._opening.get(key)
        if current not in (None, asyncio.current_task()) and not current.done():
            work.close()
            error = f"This {kind} is already being created"
            self._refuse(request_id, ClientError(ServerError.ServiceNotReady, error))
            return
        task = self._opening[key] = self.run(work, request_id)
        task.add_done_callback(lambda _: self._opened(key, task))

    def abandon(self, kind: str, client_id: int) -> None:
        """The client closes a producer or consumer, which may still be in creation."""
        task = self._opening.pop((kind, client_id), None)
        if task is not None:
            task.cancel()

    def _opened(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        if self._opening.get(key) is task:
            del self._opening[key]


async def _refused() -> None:
    error = "Too many large requests are under way; try again"
    raise ClientError(ServerError.ServiceNotReady, error)


def _nobody() -> str:
    """The client is gone."""
    return ""
