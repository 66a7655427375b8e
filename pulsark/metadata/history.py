"""The history of a metadata store, which tells it from an older copy of itself.

Each durable change has a *commit number*, one more than the one before. Each session (one start of
the store) has a random *nonce*, and the first commit number that is its own. A *mark* is a commit
number with the nonce of its session, in one integer that rises. Bookies keep
marks in their journals, and check later whether the store still knows them:

* a store that went back to an earlier state has not reached that number, or reached it again in
  another session, with another nonce;
* the same is true of a copy that was used beside the original.

Pure: no I/O, and the nonce is given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.limits import METADATA_SESSIONS_KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable

NONCE_BITS = 20
"""What is left of 63 bits numbers commits for longer than any store lives."""

NO_MARK = -1
"""The mark before any was given."""


@dataclass(frozen=True, slots=True)
class StoreStart:
    """One start of the store."""

    first_commit: int
    nonce: int


@dataclass(frozen=True, slots=True)
class History:
    """The sessions of a store, the oldest first, and the number of its last commit."""

    sessions: tuple[StoreStart, ...]
    last_commit: int

    @property
    def mark(self) -> int:
        """The mark of the last commit; a newer session may have begun behind it."""
        for session in reversed(self.sessions):
            if session.first_commit <= self.last_commit:
                return mark_of(self.last_commit, session.nonce)
        return mark_of(self.last_commit, 0)

    def at(self, commit: int) -> History:
        """After a commit of that number."""
        return replace(self, last_commit=commit)

    def knows(self, mark: int) -> bool:
        """Whether a mark was given by this store, in a past that is also its own.

        For forgotten, old sessions only the number is compared.
        """
        if mark == NO_MARK:
            return True
        commit, nonce = mark >> NONCE_BITS, mark & ((1 << NONCE_BITS) - 1)
        if commit > self.last_commit:
            return False
        for session in reversed(self.sessions):
            if session.first_commit <= commit:
                return session.nonce == nonce
        return True

    def with_session(self, nonce: int, above: Iterable[int] = ()) -> History:
        """After a start that goes on with the next number, and above the marks ``above``.

        Skipped numbers belong to the new session, so their marks are unknown.
        """
        commits = [self.last_commit, *(mark >> NONCE_BITS for mark in above)]
        session = StoreStart(self.last_commit + 1, nonce)
        kept = (*self.sessions, session)[-METADATA_SESSIONS_KEPT:]
        return History(kept, max(commits) + 1)


def mark_of(commit: int, nonce: int) -> int:
    """A commit number and a nonce as one integer, which rises with the number."""
    return commit << NONCE_BITS | nonce
