"""Lists of topics as bytes of the wire: kept for the next client, as long as there is room."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import Protocol

from pulsark.limits import TOPIC_LISTS_ENCODED_BYTES_MAX


class Encoded(Protocol):
    """Something that keeps its bytes. Compared by identity."""

    def forget_bytes(self) -> None:
        """Keep them no more: they are made anew if somebody asks."""


class Encodings:
    """The encoded lists of a broker, bounded however many patterns clients use."""

    def __init__(self) -> None:
        self._sizes: OrderedDict[weakref.ref[Encoded], int] = OrderedDict()
        """By weak reference: of those that somebody has; who was asked for last is the last."""
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """How many all of them keep."""
        return self._bytes

    def used(self, encoded: Encoded, size: int) -> None:
        """It was asked for, and keeps this many bytes. Others may have to forget theirs."""
        key = weakref.ref(encoded, self._gone)
        self._gone(key)
        self._sizes[key] = size
        self._bytes += size
        while self._bytes > TOPIC_LISTS_ENCODED_BYTES_MAX:
            oldest = next(iter(self._sizes))
            self._gone(oldest)
            found = oldest()
            if found is not None:
                found.forget_bytes()

    def _gone(self, key: weakref.ref[Encoded]) -> None:
        self._bytes -= self._sizes.pop(key, 0)
