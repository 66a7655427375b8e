"""A subscription's cursor: what it has acknowledged, and when that is durable.

State changes at once, in memory. ``done`` callbacks come later, on the event loop and never
from inside the call: for a durable cursor after the change is on stable storage at the ack
quorum, so that an answer sent from ``done`` is a promise; for another one in the next turn.
Callbacks of one log are called in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsark.errors import StorageError
from pulsark.storage.cursor.owners import CursorOwner, check_owner, owner_of
from pulsark.storage.cursor.records import CursorIdentity
from pulsark.storage.cursor.state import AckedSet, CursorState, Ledgers
from pulsark.wire.position import EARLIEST, Position

if TYPE_CHECKING:
    from pulsark.runtime import Clock, Done

Ack = tuple[Position, Sequence[int] | None, int | None]
"""Position, ack set from the wire (``None``: the whole entry), batch size (``None``: unknown)."""


class Reached(NamedTuple):
    """How far a cursor had come, and in which era: a seek begins another one."""

    era: int
    mark_delete: Position


NOTHING_REACHED = Reached(-1, EARLIEST)
"""Nothing of the cursor is known to be on stable storage."""


class CursorSink(Protocol):
    """Where a durable cursor's changes go."""

    def changed(self, cursor: Cursor, done: Done | None) -> None:
        """``cursor`` has unsaved changes, or had; ``done`` waits for all that came before."""


class Cursor:
    """One cursor. Durable ones come from ``CursorLog``."""

    __slots__ = (
        "_clock",
        "_sink",
        "durably_reached",
        "identity",
        "last_ack",
        "last_mark_delete_ms",
        "properties",
        "properties_changed",
        "state",
        "unknown_to_log",
    )

    def __init__(
        self,
        identity: CursorIdentity,
        state: CursorState,
        properties: Mapping[str, str],
        clock: Clock,
        sink: CursorSink | None,
    ) -> None:
        self.identity = identity
        self.state = state
        self.properties: dict[str, str] = dict(properties)
        self._clock = clock
        self._sink = sink
        self.durably_reached = self.reached
        """What is known to be on stable storage."""
        self.last_ack = 0.0
        """When something was acknowledged last, by the monotonic clock."""
        self.last_mark_delete_ms = 0
        self.properties_changed = False
        self.unknown_to_log = False
        """Whether the log has yet to be told that this cursor exists."""

    @classmethod
    def non_durable(
        cls, name: str, mark_delete: Position, ledgers: Ledgers, clock: Clock
    ) -> Cursor:
        """A reader's cursor: it lives in memory only."""
        state = CursorState(ledgers, mark_delete, note_unsaved=False)
        return cls(CursorIdentity(-1, "", name, clock.now_ms()), state, {}, clock, None)

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self.identity.subscription

    @property
    def owner(self) -> CursorOwner:
        """Who may move it."""
        return owner_of(self.identity.subscription)

    @property
    def durable(self) -> bool:
        """Whether the cursor survives its consumers and a restart."""
        return self.identity.cursor_id >= 0

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged."""
        return self.state.mark_delete

    @property
    def reached(self) -> Reached:
        """How far it has come in memory."""
        return Reached(self.state.era, self.state.mark_delete)

    @property
    def trim_position(self) -> Position:
        """Entries up to here are acknowledged, and will be after any crash.

        None are while a seek is on its way: a crash may leave the cursor at either side of it.
        """
        era, mark_delete = self.durably_reached
        return mark_delete if era == self.state.era else EARLIEST

    def backlog(self) -> int:
        """How many entries are not acknowledged as a whole. Exact."""
        return self.state.backlog()

    def ack(self, acks: Sequence[Ack], done: Done | None = None) -> list[int]:
        """Acknowledge entries or messages of batches.

        Returns for each how many messages of the entry are left: 0 if it is done now, was done
        before, or does not exist.
        """
        state = self.state
        mark_delete = state.mark_delete
        left = [state.ack(position, ack_set, size) for position, ack_set, size in acks]
        self._acked(mark_delete, done)
        return left

    def ack_cumulative(
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        done: Done | None = None,
        batch_size: int | None = None,
    ) -> bool:
        """Acknowledge everything up to a position; says whether that was news."""
        mark_delete = self.state.mark_delete
        news = self.state.ack_cumulative(position, ack_set, batch_size)
        self._acked(mark_delete, done)
        return news

    def reset(
        self, position: Position, ack_set: Sequence[int] | None = None, done: Done | None = None
    ) -> None:
        """Seek: ``position`` is the next entry delivered, its batch in the state of ``ack_set``."""
        check_owner(self.name, CursorOwner.CLIENTS)
        self.state.reset(position, ack_set)
        self.last_mark_delete_ms = self._clock.now_ms()
        self._tell(done)

    def restore(self, acked: AckedSet, done: Done | None = None) -> None:
        """Acknowledged is what ``acked`` says, which was so at another time."""
        check_owner(self.name, CursorOwner.CLIENTS)
        self.state.restore(acked)
        self.last_mark_delete_ms = self._clock.now_ms()
        self._tell(done)

    def set_properties(
        self,
        properties: Mapping[str, str],
        done: Done | None = None,
        *,
        by: CursorOwner = CursorOwner.CLIENTS,
    ) -> None:
        """Replace all properties."""
        check_owner(self.name, by)
        self.properties = dict(properties)
        self.properties_changed = True
        self._tell(done)

    def ledgers_changed(self) -> None:
        """The list of ledgers changed other than by growing: trimmed, or one came out empty."""
        self.state.ledgers_changed()
        if self.state.changed:
            self._tell(None)

    def flush(self, done: Done) -> None:
        """Call ``done`` once everything that happened so far is durable."""
        self._tell(done)

    def detach(self) -> None:
        """The log lets go of this object: another one, or none, stands for the cursor now."""
        self._sink = _Detached(self.name)

    def _acked(self, mark_delete_before: Position, done: Done | None) -> None:
        self.last_ack = self._clock.monotonic()
        if self.state.mark_delete != mark_delete_before:
            self.last_mark_delete_ms = self._clock.now_ms()
        if done is not None or self.state.changed:
            self._tell(done)

    def _tell(self, done: Done | None) -> None:
        if self._sink is not None:
            self._sink.changed(self, done)
        elif done is not None:
            asyncio.get_running_loop().call_soon(done, None)


class _Detached:
    """The sink of a cursor that was deleted or unloaded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def changed(self, cursor: Cursor, done: Done | None) -> None:
        if done is not None:
            error = StorageError(f"The cursor of subscription {self._name} is closed")
            asyncio.get_running_loop().call_soon(done, error)
