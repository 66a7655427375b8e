"""Which sequence ids of each producer a topic has. Pure: the memory of deduplication.

A producer numbers what it sends, upwards. Of each name two numbers say everything: the highest
that was *pushed* to storage, and the highest that is *stored*. They differ while appends are
under way, and while it is not known what became of failed ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from pulsark.limits import DEDUPLICATION_RETURN_SECONDS

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

    __slots__ = ("pushed", "seen", "stored")

    def __init__(self) -> None:
        self.pushed = NONE
        self.stored = NONE
        self.seen = NONE
        """``stored`` when it was last known that no producer has the name."""

    @property
    def decided(self) -> bool:
        """Whether it is known what became of everything that was pushed."""
        return self.pushed == self.stored

    def check(self, first: int, last: int) -> Verdict:
        """Judge an entry by its first sequence id; if it is new, count its last as pushed."""
        verdict = self.judge(first)
        if verdict is Verdict.NEW:
            self.pushed = last
        return verdict

    def judge(self, first: int) -> Verdict:
        """The same for a piece of a message, whose last piece alone counts."""
        if first > self.pushed:
            return Verdict.NEW
        return Verdict.STORED if first <= self.stored else Verdict.UNDECIDED

    def store(self, last: int) -> None:
        """Everything up to ``last`` is stored."""
        if last > self.stored:
            self.stored = last
            if last > self.pushed:
                self.pushed = last

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

    def stored(self) -> Iterator[tuple[str, int]]:
        """The highest stored sequence id of each name."""
        return ((name, known.stored) for name, known in self._by_name.items() if known.stored >= 0)

    def snapshot(self) -> dict[str, str]:
        """What is stored, as the properties of a cursor."""
        return {name: str(stored) for name, stored in self.stored()}

    def restore(self, snapshot: Mapping[str, str]) -> None:
        """Take a snapshot in. Raises ``ValueError`` if it is none."""
        for name, stored in snapshot.items():
            known = self.of(name)
            known.store(int(stored))
            known.seen = known.stored
