"""Tasks for which nobody may wait."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pulsark.errors import trace_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

log = logging.getLogger(__name__)


def to_its_end(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """What to await for the outcome of ``work``, which goes on if that is cancelled."""
    task = asyncio.create_task(work)
    task.add_done_callback(heard)
    return asyncio.shield(task)


def heard(task: asyncio.Task[Any]) -> None:
    """Retrieve an outcome for which nobody may ask any more: a failure is no defect then."""
    if not task.cancelled():
        task.exception()


def unattended(work: Coroutine[Any, Any, T], what: str) -> asyncio.Task[T]:
    """A task for which nobody waits: if an error ends it, nobody but the log says so."""
    task = asyncio.create_task(work)
    task.add_done_callback(partial(_tell, what))
    return task


def _tell(what: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s has ended with an error: %r", what, error, exc_info=trace_of(error))
