"""Which sequence ids of each producer a topic has. Pure: the memory of deduplication.

A producer numbers what it sends, upwards. An entry is judged by one number, which is in its SEND.
Of each name two say everything: the highest that was *pushed* to storage, and the highest that is
*stored*. They differ while appends are under way, and while it is not known what became of failed
ones.

A client that begins anew asks for the *last* id of all. That of a batch may be higher than the one
in its SEND, and only the batch tells: where it is stored is noted until it was looked up.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING

from pulsark.limits import DEDUPLICATION_RETURN_SECONDS
from pulsark.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SEQUENCE_ID_MAX = 2**63 - 1
"""What clients are told is a signed number, although what they send is not."""

NONE = -1
"""Below every sequence id."""
_UNKNOWN = 2**64
"""Above every sequence id."""


class Verdict(Enum):
    """What is to be done with an entry."""

    NEW = "new"
    """Store it."""
    STORED = "stored"
    """It is there: confirm it, and do not store it again."""
    UNDECIDED = "undecided"
    """It was sent before, and may yet be stored or fail: have it sent again later."""


class ProducerSequences:
    """The sequence ids of one producer name."""

    __slots__ = ("batch", "found", "pushed", "seen", "stored")

    def __init__(self) -> None:
        self.pushed = NONE
        self.stored = NONE
        self.batch: Position | None = None
        """The batch that was stored last, if its messages may have higher ids than its SEND."""
        self.found = NONE
        """The last id of one that was looked into."""
        self.seen = NONE
        """``stored`` when it was last known that no producer has the name."""

    @property
    def decided(self) -> bool:
        """Whether it is known what became of everything that was pushed."""
        return self.pushed == self.stored

    @property
    def last(self) -> int:
        """The last id that is known to be stored: nothing is said that was not."""
        return max(self.stored, self.found)

    def check(self, first: int, highest: int) -> Verdict:
        """Judge an entry by its first sequence id; if it is new, count its highest as pushed."""
        verdict = self.judge(first)
        if verdict is Verdict.NEW:
            self.pushed = highest
        return verdict

    def judge(self, first: int) -> Verdict:
        """Check a piece of a message, whose last piece alone counts."""
        if first > self.pushed:
            return Verdict.NEW
        return Verdict.STORED if first <= self.stored else Verdict.UNDECIDED

    def store(self, highest: int, batch: Position | None = None) -> None:
        """Everything up to ``highest`` is stored; more of it may be in a batch at that position."""
        if highest > self.stored:
            self.stored = highest
            self.batch = batch
            if highest > self.pushed:
                self.pushed = highest

    def looked_into(self, batch: Position, last: int) -> None:
        """A batch has this last id; -1: it does not tell."""
        self.found = max(self.found, last)
        if self.batch == batch:
            self.batch = None

    def saved(self) -> str:
        """As text: what is stored, the last id of a batch if that is higher, and a batch."""
        parts = [str(self.stored)]
        if self.batch is not None or self.found > self.stored:
            parts.append(str(self.last))
        if self.batch is not None:
            parts.append(f"{self.batch.ledger_id}:{self.batch.entry_id}")
        return ",".join(parts)

    def restore(self, saved: str) -> None:
        """Take in what ``saved`` gave. Raises ``ValueError`` if it is nothing of that."""
        stored, *more = saved.split(",")
        batch = None
        if len(more) > 1:
            ledger_id, entry_id = map(int, more[1].split(":"))
            batch = Position(ledger_id, entry_id)
        if int(stored) <= SEQUENCE_ID_MAX:  # above there is nothing that clients could go on with
            self.store(int(stored), batch)
            self.found = max(self.found, int(more[0]) if more else NONE)

    def doubt(self) -> None:
        """An append failed: what of all that was pushed is stored, is unknown."""
        self.pushed = _UNKNOWN

    def decide(self) -> None:
        """What is stored is known: the rest is not, and may be sent again."""
        self.pushed = self.stored


class SequenceTable:
    """The sequence ids of all producer names of one topic.

    A name is kept as long as a producer has it, and then for ``forget_after`` seconds, unless
    there are more than ``names_max``: then those go that were left first. None goes within
    ``return_seconds``, because a connection that broke, or the whole broker, will be back, and
    what was under way is sent again.
    """

    def __init__(
        self,
        names_max: int,
        forget_after: float,
        monotonic: Callable[[], float],
        return_seconds: float = DEDUPLICATION_RETURN_SECONDS,
    ) -> None:
        self._names_max = names_max
        self._return_seconds = return_seconds
        self._forget_after = forget_after
        self._monotonic = monotonic
        self._by_name: dict[str, ProducerSequences] = {}
        self._left: OrderedDict[str, float] = OrderedDict()
        """Names without a producer and since when, the earliest first.

        A plain dictionary takes ever longer to find its first key while first keys are removed.
        """

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> ProducerSequences | None:
        """What is known of a name."""
        return self._by_name.get(name)

    def of(self, name: str) -> ProducerSequences:
        """What is known of a name, which is in use from now on."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = ProducerSequences()
            self._left[name] = self._monotonic()
            self._make_room()
        return known

    def joined(self, name: str) -> None:
        """A producer has the name."""
        self.of(name)
        self._left.pop(name, None)

    def left(self, name: str) -> None:
        """No producer has the name any more."""
        known = self._by_name.get(name)
        if known is None:
            return
        if known.pushed == NONE:
            del self._by_name[name]
            self._left.pop(name, None)
        else:
            known.seen = known.stored
            self._left[name] = self._monotonic()
            self._make_room()

    def forget_left(self) -> None:
        """Forget the names that were left long ago, or are too many."""
        self._make_room()
        now = self._monotonic()
        for name, since in list(self._left.items()):
            if now - since < self._forget_after:
                return
            known = self._by_name[name]
            if known.stored != known.seen or not known.decided:
                # Replicated messages have the names of producers that are elsewhere.
                known.seen = known.stored
                del self._left[name]
                self._left[name] = now
            else:
                self._forget(name)

    def _make_room(self) -> None:
        left_until = self._monotonic() - self._return_seconds
        while len(self._by_name) > self._names_max and len(self._left) > 1:
            name, since = next(iter(self._left.items()))
            if since > left_until or not self._by_name[name].decided:
                return
            self._forget(name)

    def _forget(self, name: str) -> None:
        del self._by_name[name]
        del self._left[name]

    def snapshot(self) -> dict[str, str]:
        """What is stored, as the properties of a cursor."""
        return {name: known.saved() for name, known in self._by_name.items() if known.stored >= 0}

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Take a snapshot in. Raises ``ValueError`` if it is none."""
        for name, saved in snapshot.items():
            known = self.of(name)
            known.restore(saved)
            known.seen = known.stored
