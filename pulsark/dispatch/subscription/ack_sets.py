"""Ack sets as clients send them: how large they may be.

An ack set is kept, durably, until its batch is acknowledged as a whole. So a long one has to be of
a batch that is as large; of what is not known only as much is believed as clients put into a batch
by default. What is not believed acknowledges nothing: its messages are delivered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pulsark.limits import ACK_SET_WORDS_BELIEVED_MAX
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from pulsark.storage.cursor.cursor import Ack

MessagesOf = Callable[[Position], int | None]
"""How many messages an entry has, as far as that is known without reading it."""


def is_credible(position: Position, ack_set: Sequence[int] | None, messages_of: MessagesOf) -> bool:
    """Whether an entry may have an ack set like that."""
    if ack_set is None or len(ack_set) <= ACK_SET_WORDS_BELIEVED_MAX:
        return True
    return 64 * (len(ack_set) - 1) < (messages_of(position) or 0)


def credible(acks: Sequence[Ack], messages_of: MessagesOf) -> Sequence[Ack]:
    """The plausible acknowledgements; nearly always all, and then no new list is made."""
    for _, ack_set, _ in acks:
        if ack_set is not None and len(ack_set) > ACK_SET_WORDS_BELIEVED_MAX:
            return [ack for ack in acks if is_credible(ack[0], ack[1], messages_of)]
    return acks
