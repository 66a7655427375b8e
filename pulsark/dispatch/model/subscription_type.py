"""The seam between a subscription and its type.

A type is a pure decision: it knows the consumers and says which one takes the next entry. It does
no I/O, reads no clock and never awaits, so each is tested with scripted scenarios.

A type that *tracks pending* entries also knows which of them wait to be delivered again, and
which comes next. An entry is then, from the first time it is offered until it is acknowledged,
either pending at one consumer or waiting here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import ClientError, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry
    from pulsark.wire.position import Position


class SubType(IntEnum):
    """``CommandSubscribe.SubType`` of the protocol."""

    Exclusive = 0
    Shared = 1
    Failover = 2
    Key_Shared = 3


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """A type as consumers ask for it; all that are connected to a subscription ask for the same.

    ``sticky`` (KeySharedMode STICKY, else AUTO_SPLIT) and ``allow_out_of_order`` are for
    Key_Shared only.
    """

    sub_type: SubType
    sticky: bool = False
    allow_out_of_order: bool = False

    def __str__(self) -> str:
        if self.sub_type != SubType.Key_Shared:
            return self.sub_type.name
        order = "any order" if self.allow_out_of_order else "strict order"
        return f"Key_Shared ({self.key_shared_mode}, {order})"

    @property
    def key_shared_mode(self) -> str:
        """The mode's name in the protocol."""
        return "STICKY" if self.sticky else "AUTO_SPLIT"


class SubscriptionClosedError(ClientError):
    """The subscription was deleted meanwhile. The next consumer of that name begins again."""

    def __init__(self, name: str) -> None:
        super().__init__(ServerError.ServiceNotReady, f"Subscription {name} was deleted")


class PlaceTakenError(ClientError):
    """A consumer cannot be admitted as long as ``holder`` is there."""

    def __init__(self, code: ServerError, message: str, holder: Consumer) -> None:
        super().__init__(code, message)
        self.holder = holder


class SubscriptionType(Protocol):
    """Who gets what. Consumers are those of one subscription, in order of arrival."""

    @property
    def sub_type(self) -> SubType:
        """Which one it is."""

    @property
    def tracks_pending(self) -> bool:
        """Whether entries are owned by the consumer they went to until it acknowledges them."""

    @property
    def consumers(self) -> list[Consumer]:
        """All connected consumers."""

    @property
    def consumer_count(self) -> int:
        """How many there are, without a list of them."""

    @property
    def active(self) -> Consumer | None:
        """The only consumer that receives (Exclusive, Failover); ``None`` for shared types."""

    @property
    def unwanted(self) -> Callable[[Entry], bool] | None:
        """Tells entries that no consumer wants, which are passed over. ``None``: there are none."""

    @property
    def plan(self) -> Callable[[], bool] | None:
        """Plans some of what waits and moved as consumers came or went; whether more is left."""

    @property
    def replay_count(self) -> int:
        """Entries that wait to be delivered again, or were put aside."""

    def add(self, consumer: Consumer) -> None:
        """Admit a consumer, or raise ``ClientError``: `PlaceTakenError` if another one is why."""

    def remove(self, consumer: Consumer) -> None:
        """Forget a consumer that left. It is no error if it is unknown.

        What was pending there is given back by the caller afterwards.
        """

    def wake(self, consumer: Consumer) -> None:
        """A consumer may have room again: permits, acknowledgements, or its socket drained."""

    def room(self) -> int:
        """How many new entries are worth reading now; 0 if no consumer could take one."""

    def choose(self, entry: Entry) -> Consumer | None:
        """The consumer that ``entry`` goes to now; ``None`` if it has to wait.

        The entry counts as pending there from now on, and no longer as waiting.
        """

    def put_aside(self, entry: Entry) -> bool:
        """An entry that has to wait: whether it waits here, so that others may overtake it."""

    def give_back(self, position: Position) -> None:
        """An entry is to be delivered again: it is not pending any more, or never was."""

    def forget(self, position: Position) -> None:
        """An entry is acknowledged: it neither is pending nor waits. Any position will do."""

    def waits(self, position: Position) -> bool:
        """Whether the entry at this position waits here."""

    def held_up(self) -> Collection[Position]:
        """Return the entries that wait for one consumer, even while others have room."""

    def next_replay(self) -> Position | None:
        """The waiting entry that can go out next, as far as is known without its content."""

    def clear(self) -> None:
        """Nothing waits or is pending any more: the subscription begins again."""
