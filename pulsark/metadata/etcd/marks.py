"""Marks of etcd's states; see ``server_marks``.

What etcd counts is its revision. All that this process learns of a revision it learns together with
the key of the history: its transactions compare it, and the watch tells of its change before any
later one. So it gives no mark with an old nonce for a newer session's revision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.metadata.server_marks import CountedHistory, ServerMarks

if TYPE_CHECKING:
    from collections.abc import Iterable


class Marks(ServerMarks):
    """The marks that this session gives and knows."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = 0
        """The revision of the history that is known."""
        self.revision = 0
        """The last one that is known to belong to it."""

    @property
    def mark(self) -> int:
        return self._history.at(self.revision).mark

    def knows(self, mark: int) -> bool:
        return self._history.at(self.revision).knows(mark)

    def reached(self, revision: int) -> None:
        """A revision was seen to which the history belongs."""
        self.revision = max(self.revision, revision)

    def learn(self, value: bytes, changed: int) -> None:
        """The history as it was written by a revision. ``CorruptMetadataError``."""
        if changed > self.changed:
            self._history = CountedHistory.read(value, changed, "the history in etcd")
            self.changed = changed
            self.reached(changed)

    def begun(self, nonce: int, above: Iterable[int]) -> bytes:
        """What to write for a new session, which continues above marks."""
        return self._history.begun(self.revision, nonce, above)
