"""What the erasure of messages means for those who have not received them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.storage.managed_ledger.erasure import holes_of
from pulsark.wire.ack_set import full_mask, words_of_mask
from pulsark.wire.entry import parse_entry

if TYPE_CHECKING:
    from pulsark.dispatch.model.entry import Entry
    from pulsark.storage.cursor.cursor import Ack


def is_gone(entry: Entry) -> bool:
    """Whether no consumer gets anything of an entry."""
    return entry.marker and parse_entry(entry.data).marker


def ack_of(entry: Entry) -> Ack:
    """The acknowledgement of all messages of an entry that no consumer gets."""
    if is_gone(entry):
        return entry.position, None, None
    mask = full_mask(entry.messages)
    for index in holes_of(entry.data):
        mask &= ~(1 << index)
    return entry.position, words_of_mask(mask), entry.messages


def last_index(entry: Entry) -> int:
    """The batch index of the last message of an entry that can be delivered; -1 without a batch."""
    if not entry.batched:
        return -1
    gone = set(holes_of(entry.data)) if entry.marker else set[int]()
    return max((i for i in range(entry.messages) if i not in gone), default=entry.messages - 1)
