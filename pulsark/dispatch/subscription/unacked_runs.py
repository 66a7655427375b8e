"""Goes through what a cursor has not acknowledged; the event loop has its turns in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.loop.request_turns import pause
from pulsark.limits import RUNS_PER_TURN_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.storage.cursor.state import CursorState
    from pulsark.wire.position import Position


async def unacked_runs(state: CursorState) -> AsyncIterator[tuple[Position, Position]]:
    """Runs of entries that are not acknowledged, in order, up to the entry that is last now.

    The state may change meanwhile: each run is as it is when its turn begins. Of a ``frozen`` state
    all are of one moment.
    """
    after, last = state.mark_delete, state.last_confirmed
    while runs := state.unacked_runs(after, last, RUNS_PER_TURN_MAX):
        for run in runs:
            yield run
        after = runs[-1][1]
        await pause()
