"""Which consumer of a group has which segments. Pure: events in, and shares out.

While there are members, each segment has one *owner*, who may subscribe to it. It passes to another
one in three steps: its owner is told that it loses it; the owner closes what it has there, or does
not in time; then the next one is told that it has it. So no two subscribe to it at a time.

Pulsar 5's first clients say nothing when a consumer is closed that has no segment. So nobody knows
of a member without one, an *idle* one, whether it is still there. It is *asked*: it is told a
segment that another one keeps, and if it comes for that, it gets its share. Only if all are idle
do they get segments unasked.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

from pulsark.dispatch.scalable.limits import (
    HAND_OVER_CHECKS_MAX,
    SEGMENT_HAND_OVER_SECONDS,
    SHARE_ASKED_AGAIN_SECONDS,
    STREAM_CONSUMER_GRACE_SECONDS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


class _HandOver:
    """A segment that its owner was told to give up."""

    __slots__ = ("until", "was_subscribed")

    def __init__(self, until: float) -> None:
        self.until = until
        """When it is taken from the owner."""
        self.was_subscribed = False
        """Whether the owner was seen on it since. If not, it may be about to subscribe."""


class Shares:
    """The members of one group, by name, and what each has."""

    def __init__(self, segments: int, *, exclusive: bool) -> None:
        """If not ``exclusive``, two may read a segment at a time: it is handed over at once."""
        self._exclusive = exclusive
        self._away: dict[str, float | None] = {}
        """All members. Those without a connection: until when they may come back."""
        self._owners: list[str | None] = [None] * segments
        self._heirs: list[str | None] = [None] * segments
        """Who is to have each segment."""
        self._going: dict[int, _HandOver] = {}
        self._silent: dict[str, float] = {}
        """Members that subscribe to nothing in their share. While there are others, those get it.
        Until when they are not asked again."""
        self._asked: dict[str, int] = {}
        """Idle members, and the segment that each is told."""

    # -- what there is ---

    @property
    def members(self) -> Collection[str]:
        """Members that have a connection or may come back."""
        return self._away.keys()

    @property
    def is_over(self) -> bool:
        """Whether nobody is left."""
        return not self._away

    @property
    def hands_over(self) -> bool:
        """Whether a segment is on its way from one to another."""
        return bool(self._going)

    @property
    def handed_over(self) -> int:
        """How many are."""
        return len(self._going)

    def owner(self, segment: int) -> str | None:
        """Who may subscribe to a segment; nobody if there is no such segment."""
        return self._owners[segment] if segment < len(self._owners) else None

    def is_away(self, name: str) -> bool:
        """Whether a member has no connection now."""
        return self._away.get(name) is not None

    def shares(self) -> dict[str, list[int]]:
        """What each may be told that it has."""
        found: dict[str, list[int]] = {}
        for segment, owner in enumerate(self._owners):
            if owner is not None and segment not in self._going:
                found.setdefault(owner, []).append(segment)
        return found

    def asked(self, name: str) -> int | None:
        """The segment that an idle member is told, to see whether it comes for it."""
        segment = self._asked.get(name)
        return None if segment is None or self._owners[segment] == name else segment

    def owned(self) -> dict[str, list[int]]:
        """Who may subscribe to what, also where it is about to change."""
        found: dict[str, list[int]] = {}
        for segment, owner in enumerate(self._owners):
            if owner is not None:
                found.setdefault(owner, []).append(segment)
        return found

    def unsettled(self) -> set[str]:
        """Members that are to get more segments than they have."""
        pairs = zip(self._owners, self._heirs, strict=True)
        waiting = {heir for owner, heir in pairs if heir is not None and heir != owner}
        coming_back = {self._heirs[segment] for segment in self._going}
        return waiting | {heir for heir in coming_back if heir is not None}

    def next_deadline(self) -> float | None:
        """When ``pass_time`` has something to do at the latest."""
        times = [until for until in self._away.values() if until is not None]
        times += [going.until for going in self._going.values()]
        times += self._silent.values()
        return min(times, default=None)

    # -- what happens ---

    def join(self, name: str, now: float) -> None:
        """A member has a connection: a new one, or one that comes back."""
        self._away[name] = None
        self._silent.pop(name, None)
        self._deal(now, here=name)

    def hold(self, name: str, segment: int, now: float) -> None:
        """Somebody is on a segment whom nobody knows: it was there before the broker started."""
        if self._owners[segment] is None:
            self._away.setdefault(name, now + STREAM_CONSUMER_GRACE_SECONDS)
            self._owners[segment] = self._heirs[segment] = name

    def lose(self, name: str, now: float) -> None:
        """A member's connection is gone. It keeps its share for a while."""
        if name in self._away:
            self._away[name] = now + STREAM_CONSUMER_GRACE_SECONDS

    def silence(self, name: str, now: float) -> None:
        """A member subscribes to nothing that it gets: it may be closed, and nobody said so."""
        if name in self._away and name not in self._silent:
            self._silent[name] = now + SHARE_ASKED_AGAIN_SECONDS
            self._deal(now)

    def hear(self, name: str, now: float) -> None:
        """A member subscribes to something."""
        segment = self._asked.get(name)
        comes = segment is not None and self._heirs[segment] != name
        if segment is not None:
            self._heirs[segment] = name  # it is on its way there already
        if comes or name in self._silent:
            self._silent.pop(name, None)
            self._deal(now, here=name)

    def leave(self, name: str, now: float) -> None:
        """A member is gone for good. What it still has goes to others once it is free."""
        if name in self._away:
            del self._away[name]
            self._silent.pop(name, None)
            self._deal(now)

    def close(self, name: str, segment: int, now: float) -> None:
        """A member closed what it had on a segment. If it was to keep that, it leaves."""
        if self.owner(segment) != name:
            return
        if segment not in self._going:
            self.leave(name, now)
        if segment in self._going:
            self._release(segment)

    def resize(self, segments: int, now: float) -> None:
        """The topic has another number of segments."""
        more = segments - len(self._owners)
        if more > 0:
            self._owners += [None] * more
            self._heirs += [None] * more
        else:
            del self._owners[segments:], self._heirs[segments:]
            self._going = {k: going for k, going in self._going.items() if k < segments}
        self._deal(now)

    def pass_time(self, now: float, is_subscribed: Callable[[str, int], bool]) -> list[int]:
        """Who does not come back is gone; what is free passes on.

        Returns the segments that are taken from owners who are still on them: close those
        consumers before anybody hears of their new owners.
        """
        for name, until in list(self._away.items()):
            if until is not None and now >= until:
                self.leave(name, now)
        again = [name for name, until in self._silent.items() if now >= until]
        if again:
            for name in again:
                del self._silent[name]
            self._deal(now)
        taken: list[int] = []
        for segment in list(islice(self._going, HAND_OVER_CHECKS_MAX)):
            going = self._going.pop(segment)
            self._going[segment] = going  # the others come first next time
            owner = self._owners[segment]
            assert owner is not None
            if is_subscribed(owner, segment):
                going.was_subscribed = True
                if now >= going.until:
                    taken.append(segment)
                    self._release(segment)
            elif going.was_subscribed or now >= going.until or not self._is_here(owner):
                self._release(segment)
        return taken

    # -- how ---

    def _is_here(self, name: str) -> bool:
        return name not in self._silent and name in self._away and self._away[name] is None

    def _deal(self, now: float, here: str | None = None) -> None:
        """Say anew who is to have what. ``here`` was heard of just now."""
        busy = {*self._owners, *self._heirs, here}
        here_or_back = self._away.keys() - self._silent.keys()
        known = here_or_back & busy
        self._heirs = dealt(self._heirs, sorted(known or here_or_back or self._away))
        for segment, (owner, heir) in enumerate(zip(self._owners, self._heirs, strict=True)):
            if owner is None or (owner != heir and not self._exclusive):
                self._owners[segment] = heir
            elif owner != heir and segment not in self._going:
                self._going[segment] = _HandOver(now + SEGMENT_HAND_OVER_SECONDS)
        self._ask(here_or_back if len(known) < len(self._owners) else ())

    def _ask(self, names: Collection[str]) -> None:
        busy = {*self._owners, *self._heirs}
        idle = sorted(name for name in names if name not in busy and self._away[name] is None)
        segments = range(len(self._owners))
        before = {name: k for name, k in self._asked.items() if k in segments}
        # Who came and is to have it has been told it, and waits for it.
        self._asked = {name: k for name, k in before.items() if self._heirs[k] == name}
        for name, segment in zip(idle, cycle(segments), strict=False):
            self._asked[name] = before.get(name, segment)

    def _release(self, segment: int) -> None:
        del self._going[segment]
        self._owners[segment] = self._heirs[segment]


def dealt(before: Sequence[str | None], names: Sequence[str]) -> list[str | None]:
    """Segments among names, as even as can be; as few as can be go from one to another.

    Of what one may keep, it keeps what all would have if they had come at once. So those who come
    back to a broker that was started anew, in any order, mostly get what they had.
    """
    if not names:
        return [None] * len(before)
    at_once = [names[k * len(names) // len(before)] for k in range(len(before))]
    had = dict.fromkeys(names, 0)
    for name in before:
        if name in had:
            had[name] += 1
    each, more = divmod(len(before), len(names))
    # Who has most keeps most: the order is that of ``names`` where they have the same.
    ranked = sorted(names, key=lambda name: -had[name])
    room = {name: each + (rank < more) for rank, name in enumerate(ranked)}
    after: list[str | None] = [None] * len(before)
    for preferred in (True, False):
        for segment, name in enumerate(before):
            if name is None or room.get(name, 0) == 0 or after[segment] is not None:
                continue
            if not preferred or name == at_once[segment]:
                room[name] -= 1
                after[segment] = name
    for segment, name in enumerate(at_once):
        if after[segment] is None and room[name] > 0:
            room[name] -= 1
            after[segment] = name
    free = (name for name in names for _ in range(room[name]))
    return [next(free) if name is None else name for name in after]
