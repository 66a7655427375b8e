"""The seam between a subscription and its type.

A type is a pure decision: it knows the consumers and says who takes the next entry. It does
no I/O, reads no clock and never awaits, so each is tested with scripted scenarios. What it
sees of a consumer is the `Receiver` protocol.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pulsark.dispatch.consumer import Consumer
    from pulsark.dispatch.entry import Entry


class SubType(IntEnum):
    """``CommandSubscribe.SubType`` of the protocol."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3


class SubscriptionType(Protocol):
    """Who gets what. Consumers are those of one subscription, in order of arrival."""

    sub_type: SubType
    tracks_pending: bool
    """Whether entries are owned by the consumer they went to until it acknowledges them."""

    @property
    def consumers(self) -> list[Consumer]:
        """All connected consumers."""

    @property
    def active(self) -> Consumer | None:
        """The only consumer that receives (Exclusive, Failover); ``None`` for shared types."""

    def add(self, consumer: Consumer) -> None:
        """Admit a consumer, or raise ``ClientError``."""

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer that left. It is no error if it is unknown."""

    def has_room(self) -> bool:
        """Whether some consumer can take an entry now."""

    def choose(self, entry: Entry) -> Consumer | None:
        """The consumer that takes ``entry`` now; ``None`` if it has to wait."""
