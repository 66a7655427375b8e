"""Work that goes to its end, whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def to_its_end(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """What to await for the outcome of ``work``, which goes on if that is cancelled."""
    task = asyncio.create_task(work)
    task.add_done_callback(heard)
    return asyncio.shield(task)


def heard(task: asyncio.Task[Any]) -> None:
    """Retrieve an outcome for which nobody may ask any more: a failure is no defect then."""
    if not task.cancelled():
        task.exception()
