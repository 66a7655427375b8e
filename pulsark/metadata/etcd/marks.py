"""Marks of the store's states, so that bookies notice an etcd that went back; see ``history``.

The number of a commit is etcd's revision, plus an offset if marks were adopted. Each session of a
store is written down in one key, whose revision is its beginning. All that this process learns of
a revision it learns together with that key: its transactions compare it, and the watch tells of its
change before any later one. So it gives no mark with an old nonce for a newer session's revision.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pulsark.errors import CorruptMetadataError
from pulsark.metadata.history import NONCE_BITS, History, StoreStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FORMAT: Final = 1
_COMMIT_MAX: Final = (1 << (63 - NONCE_BITS)) - 1
"""Later revisions share one number: marks still do not fall, but show no loss any more."""


class Marks:
    """The marks that this session gives and knows."""

    def __init__(self) -> None:
        self.changed = 0
        """The revision of the history that is known."""
        self.revision = 0
        """The last one that is known to belong to it."""
        self._history = History((), 0)
        self._offset = 0
        self._listeners: list[Callable[[int], None]] = []

    @property
    def mark(self) -> int:
        """The mark of the last revision that this process knows of."""
        return self._history.at(_number(self.revision + self._offset)).mark

    def knows(self, mark: int) -> bool:
        """See ``MetadataStore``."""
        return self._history.at(_number(self.revision + self._offset)).knows(mark)

    def listen(self, listener: Callable[[int], None]) -> None:
        """Call ``listener(mark)`` after changes."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """There is a change: tell its mark."""
        mark = self.mark
        for listener in self._listeners:
            listener(mark)

    def reached(self, revision: int) -> None:
        """A revision was seen to which the history belongs."""
        self.revision = max(self.revision, revision)

    def learn(self, value: bytes, changed: int) -> None:
        """The history as it was written by a revision. ``CorruptMetadataError``."""
        if changed <= self.changed:
            return
        sessions: list[StoreStart] = []
        offset = 0
        if value:
            try:
                document = json.loads(value)
                offset = int(document["offset"])
                sessions = [StoreStart(int(one), int(two)) for one, two in document["sessions"]]
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptMetadataError("the history in etcd cannot be read") from error
        if sessions:  # who wrote it did not know yet in which revision
            sessions[-1] = StoreStart(_number(changed + offset), sessions[-1].nonce)
        self._history = History(tuple(sessions), _number(changed + offset))
        self._offset, self.changed = offset, changed
        self.reached(changed)

    def begun(self, nonce: int, above: Iterable[int]) -> bytes:
        """What to write for a new session, which continues above marks."""
        history = self._history.at(_number(self.revision + self._offset)).with_session(nonce, above)
        # The next revision may not be this one, so the offset may be larger than it needs to be.
        offset = max(self._offset, history.last_commit - self.revision - 1)
        document = {
            "version": FORMAT,
            "offset": offset,
            "sessions": [[start.first_commit, start.nonce] for start in history.sessions],
        }
        return json.dumps(document).encode()


def _number(commit: int) -> int:
    return min(commit, _COMMIT_MAX)
