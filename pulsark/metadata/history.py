"""The history of a metadata store, which distinguishes it from an older copy of itself.

Commits are numbered. Each start of the store begins a session, with a random *nonce* and its first
commit number. A *mark* combines a commit number and the nonce of its session in one rising integer.
Bookies keep marks in their journals, and check later whether the store still knows them. A store
that went back to an earlier state, or a copy that was used beside the original, has not reached
that number, or has reached it again in another session, with another nonce.

Pure: no I/O, and the caller provides the nonce.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.limits import METADATA_SESSIONS_KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable

NONCE_BITS = 20
"""The other 43 bits number more commits than any store ever makes."""

NO_MARK = -1
"""The mark of a store without commits."""


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
        """The mark of the last commit. A newer session may have begun since."""
        for session in reversed(self.sessions):
            if session.first_commit <= self.last_commit:
                return mark_of(self.last_commit, session.nonce)
        return mark_of(self.last_commit, 0)

    def at(self, commit: int) -> History:
        """The history after a commit of this number."""
        return replace(self, last_commit=commit)

    def knows(self, mark: int) -> bool:
        """Whether this store gave the mark, and has not gone back behind it since.

        Old sessions are forgotten; for them only the number is compared.
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
        """The history after a start, which continues above the last commit and the marks ``above``.

        Skipped numbers belong to the new session, so their marks are unknown.
        """
        commits = [self.last_commit, *(mark >> NONCE_BITS for mark in above)]
        session = StoreStart(self.last_commit + 1, nonce)
        kept = (*self.sessions, session)[-METADATA_SESSIONS_KEPT:]
        return History(kept, max(commits) + 1)


def mark_of(commit: int, nonce: int) -> int:
    """The mark of a commit number and a nonce. It rises with the number."""
    return commit << NONCE_BITS | nonce
