"""What a metadata store has been through, so that it can be told from an older copy of itself.

Each durable change has a *commit number*, one more than the one before. Each session (one start of
the store) has a random *nonce*, and the first commit number that is its own. A *mark* is a commit
number with the nonce of its session, in one integer that rises. Whoever keeps a mark elsewhere (the
bookies do, in their journals) can ask later whether the store still knows it:

* a store that went back to an earlier state has not come to that number yet, or came to it again
  in another session, under another nonce;
* so has a copy of the store that lived on beside the original.

Pure: no I/O, and the nonce is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pulsark.limits import METADATA_SESSIONS_KEPT

NONCE_BITS = 20
"""What is left of 63 bits numbers commits for longer than any store lives."""

NO_MARK = -1
"""The mark of somebody who never got one."""


@dataclass(frozen=True, slots=True)
class Session:
    """One start of the store."""

    first_commit: int
    nonce: int


@dataclass(frozen=True, slots=True)
class History:
    """The sessions of a store, the oldest first, and the number of its last commit."""

    sessions: tuple[Session, ...]
    last_commit: int

    @property
    def mark(self) -> int:
        """Of the last commit."""
        return mark_of(self.last_commit, self.sessions[-1].nonce if self.sessions else 0)

    def knows(self, mark: int) -> bool:
        """Whether a mark was given by this store, in a past that is also its own.

        Of sessions so old that they are forgotten only the number is compared.
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

        Numbers that are left out count as of the new session, so a mark of them is not known.
        """
        commits = [self.last_commit, *(mark >> NONCE_BITS for mark in above)]
        session = Session(self.last_commit + 1, nonce)
        kept = (*self.sessions, session)[-METADATA_SESSIONS_KEPT:]
        return History(kept, max(commits) + 1)


def mark_of(commit: int, nonce: int) -> int:
    """A commit number and a nonce as one integer, which rises with the number."""
    return commit << NONCE_BITS | nonce
