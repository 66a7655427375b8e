"""Who holds an entry that another consumer acknowledges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.subscription_type import SubscriptionType
    from pulsark.wire.position import Position

HOLDER_QUESTIONS = 64
"""After so many of them one ACK gets an index of who holds what."""


class Holders:
    """Finds the consumers that hold what another one acknowledges, for one ACK.

    Mostly it is asked once or never. A command that names very many entries of others is
    answered from an index, made once: the work must not grow with ids times consumers.
    """

    __slots__ = ("_asked", "_index", "_type")

    def __init__(self, type_: SubscriptionType) -> None:
        self._type = type_
        self._asked = 0
        self._index: dict[Position, Consumer] | None = None

    def find(self, position: Position) -> Consumer | None:
        """Who holds an entry now."""
        self._asked += 1
        if self._asked < HOLDER_QUESTIONS:
            return next((c for c in self._type.consumers if position in c.pending), None)
        if self._index is None:
            self._index = {p: c for c in self._type.consumers for p in c.pending}
        owner = self._index.get(position)
        return owner if owner is not None and position in owner.pending else None
