"""Marks of a server's states, so that bookies notice a server that went back; see ``history``.

The number of a commit is what the server counts, plus an offset if marks were adopted. Each session
of a store is written down in one value on the server, and begins with the write of that value.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pulsark.errors import CorruptMetadataError
from pulsark.metadata.history import NONCE_BITS, History, StoreStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FORMAT: Final = 1
_COMMIT_MAX: Final = (1 << (63 - NONCE_BITS)) - 1
"""Later counts share one number: marks still do not fall, but show no loss any more."""


@dataclass(frozen=True, slots=True)
class CountedHistory:
    """The sessions as a server has them."""

    sessions: tuple[StoreStart, ...] = ()
    offset: int = 0

    @classmethod
    def read(cls, value: bytes, written: int, where: str) -> CountedHistory:
        """As it was written at a count. ``CorruptMetadataError``."""
        if not value:
            return cls()
        try:
            document = json.loads(value)
            offset = int(document["offset"])
            sessions = [StoreStart(int(one), int(two)) for one, two in document["sessions"]]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptMetadataError(f"{where} cannot be read") from error
        if sessions:  # who wrote it did not know yet at which count
            sessions[-1] = StoreStart(_number(written + offset), sessions[-1].nonce)
        return cls(tuple(sessions), offset)

    def at(self, count: int) -> History:
        """The history when the server has counted so far."""
        return History(self.sessions, _number(count + self.offset))

    def begun(self, count: int, nonce: int, above: Iterable[int]) -> bytes:
        """What to write for a new session, which continues above marks."""
        history = self.at(count).with_session(nonce, above)
        # The write may not be the next one, so the offset may be larger than it needs to be.
        document = {
            "version": FORMAT,
            "offset": max(self.offset, history.last_commit - count - 1),
            "sessions": [[start.first_commit, start.nonce] for start in history.sessions],
        }
        return json.dumps(document).encode()


class ServerMarks(ABC):
    """The marks that a session gives and knows."""

    def __init__(self) -> None:
        self._history = CountedHistory()
        self._listeners: list[Callable[[int], None]] = []

    @property
    @abstractmethod
    def mark(self) -> int:
        """The mark of the last count that this process knows of."""

    @abstractmethod
    def knows(self, mark: int) -> bool:
        """See ``MetadataStore``."""

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call ``listener(mark)`` after changes."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """There is a change: tell its mark."""
        mark = self.mark
        for listener in self._listeners:
            listener(mark)


def _number(commit: int) -> int:
    return min(commit, _COMMIT_MAX)
