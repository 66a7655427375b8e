"""A consumer of a group: what its client was told, and what it is to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.scalable.limits import SEGMENT_HAND_OVER_SECONDS

if TYPE_CHECKING:
    from pulsark.dispatch.scalable.groups import Group
    from pulsark.dispatch.scalable.layouts import Layout

INFIX = "-seg-"
"""A client names the consumer of a segment by its own name, this, and the segment's number."""


class Told(Protocol):
    """A member's client."""

    async def probe(self) -> bool:
        """Whether it still answers; if not, its connection is closed."""

    def tell(self, member: Member) -> None:
        """Tell it the share that it has then."""


class Member:
    """A consumer of a group: one registration of its client."""

    __slots__ = (
        "answer_by", "client", "consumer_id", "group", "look_at", "name", "owed", "reminded",
        "request_id", "told", "unheard",
    )  # fmt: skip

    def __init__(
        self, group: Group, name: str, client: Told, consumer_id: int, request_id: int, now: float
    ) -> None:
        self.group = group
        self.name = name
        self.client = client
        self.consumer_id = consumer_id
        self.request_id: int | None = request_id
        """``None`` once that is answered."""
        self.answer_by = now + SEGMENT_HAND_OVER_SECONDS
        self.told: tuple[int, list[int]] | None = None
        """The epoch and the segments that it was told last."""
        self.owed: set[int] = set()
        """Segments that it was told and was not seen on yet."""
        self.look_at = now
        """When it is looked whether it is on them."""
        self.reminded = False
        self.unheard = False
        """Whether it is to be told its share again."""

    @property
    def is_current(self) -> bool:
        """Whether its client has not gone, nor come anew."""
        return self.group.members.get(self.name) is self

    def to_tell(self) -> tuple[Layout, list[int]] | None:
        """Its share, if that is not what it was told last."""
        share = self.group.share(self)
        layout = self.group.layout
        if share is None or (self.told == (layout.epoch, share) and not self.unheard):
            return None
        return layout, share

    def was_told(self, layout: Layout, share: list[int]) -> None:
        """Its client is told its share. It has some time to subscribe to what is new."""
        if not self.unheard:
            known = set() if self.told is None else set(self.told[1])
            new = set(share) - known
            self.owed.intersection_update(share)
            if new and not self.owed:  # who subscribes to nothing has no more time for more
                self.look_at, self.reminded = self.group.soon(), False
            self.owed |= new
        self.told, self.request_id, self.unheard = (layout.epoch, share), None, False
        self.group.set_timer()

    def expects(self, segment: int) -> bool:
        """Whether its client takes it that it has a segment, or may do so."""
        return self.told is None or segment in self.told[1]

    def consumer_name(self, segment: int) -> str:
        """The name of its consumer of a segment."""
        return f"{self.name}{INFIX}{segment}"

    def closed(self, segment: int) -> None:
        """Its client closed what it had on a segment."""
        if self.is_current:
            self.group.closed(self, segment)

    def leave(self) -> None:
        """It is closed."""
        if self.is_current:
            self.group.leave(self)

    def lose(self) -> None:
        """Its connection is gone."""
        if self.is_current:
            self.group.lose(self)
