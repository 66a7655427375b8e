"""The unacknowledged messages of a batch: one bit per message, set until it is acknowledged.

The protocol has 64-bit words, lowest first, without zero words at the end; no words at all mean
the whole entry. In memory a set is a Python integer, so that set operations are AND and OR.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def full_mask(batch_size: int) -> int:
    """A batch without acknowledged messages."""
    return (1 << batch_size) - 1


def mask_of_words(words: Sequence[int]) -> int:
    """The set of the protocol's signed words, as in ``MessageIdData.ack_set``."""
    if len(words) == 1:  # nearly always: a batch of up to 64 messages
        return words[0] & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(struct.pack(f"<{len(words)}q", *words), "little")


def words_of_mask(mask: int) -> list[int]:
    """The protocol's signed words; an empty list if everything is acknowledged."""
    count = (mask.bit_length() + 63) // 64
    return list(struct.unpack(f"<{count}q", mask.to_bytes(count * 8, "little")))


def bit_indexes(mask: int) -> list[int]:
    """The messages of a set, in linear time, as shifting a large number bit by bit is not."""
    digits = f"{mask:b}"[::-1]
    return [found.start() for found in re.finditer("1", digits)]
