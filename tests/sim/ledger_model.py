"""A model of one ledger, all of whose states are visited: what its rules promise holds in each.

One ledger of E = Qw = 3 and Qa = 2 on three bookies, one spare bookie, and whoever may touch it:

* its writer, which appends, puts a spare into the place of a failed bookie and goes on confirming
  meanwhile (R3), and closes;
* the recovery of a new owner that has claimed the guard, or of the same owner after a fence;
* auto-recovery as BookKeeper's: it recovers and closes a ledger with a lost bookie in its last
  ensemble, whoever writes it, and repairs every other ensemble, of an open ledger too;
* a bookie that is lost for good, bookies that do not answer, and writes of metadata whose answer is
  lost, that are never made, or made later.

The metadata are changed by the real ``decisions``; only the loop around them is modelled, so that
``Rules`` can break it. What must hold:

* a ledger is closed behind everything that was confirmed, and its end stays;
* of each entry that exists, the metadata name bookies that have it: an ack quorum, or one less with
  a bookie lost;
* what a slot of the writer counts for, its bookie has;
* nobody takes back a repair, and nobody writes without the guard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from pulsark.errors import LedgerFencedError
from pulsark.storage.ledger import decisions
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState

ACKS = 2
SLOTS = range(3)
ALIVE, FENCED = 1, 2
FIRST_ENTRY = 2
"""The bit of a bookie's first entry."""

OPEN, CLOSING, CLOSED, STOPPED = "open", "closing", "closed", "stopped"
IDLE, MARK, FENCE, READ, END, DONE, GONE = "idle", "mark", "fence", "read", "end", "done", "gone"


@dataclass(frozen=True)
class Rules:
    """What is modelled, and which rules are broken."""

    entries: int = 2
    fails: int = 2
    """How often the writer takes a bookie for failed that is not."""
    losses: int = 1
    repairs: int = 1
    unheard: int = 1
    """How many writes of metadata are not answered."""
    owner_recovers: bool = True
    new_owner: bool = True
    auto_recovery: bool = True
    # Broken rules.
    conflict_is_written_over: bool = False
    unknown_is_failed: bool = False
    replacement_lacks_confirmed: bool = False
    earlier_from_memory: bool = False
    replacement_counts_at_once: bool = False
    recovery_stores_replacements: bool = False
    no_guard: bool = False


class Slot(NamedTuple):
    """``acked``: the last entry that is there. That an answer comes late makes no difference: what
    counts is then the same, and a slot may fail at any time."""

    bookie: int
    acked: int
    failed: bool


class Change(NamedTuple):
    """A new ensemble that the writer asks for."""

    first: int
    before: tuple[int, tuple[int, ...]]
    bookies: tuple[int, ...]


class Writer(NamedTuple):
    phase: str
    known: int
    pushed: int
    lac: int
    sent_lac: int
    """What the last entry said of it."""
    slots: tuple[Slot, ...]
    change: Change | None


class Recovery(NamedTuple):
    phase: str
    known: int = 0
    asked: int = 0
    """Members that were asked to be fenced."""
    fenced: int = 0
    """Those that are, as bits."""
    entry: int = 0
    segments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    failed: int = 0
    """Members that do not take what is found, as bits."""


class Repair(NamedTuple):
    known: int
    first: int
    lost: int
    copy: int


class State(NamedTuple):
    meta: int
    guard: bool
    """Whether the first owner still has it."""
    bookies: tuple[int, ...]
    writer: Writer
    recoveries: tuple[Recovery, Recovery]
    """That of an owner, and auto-recovery."""
    repair: Repair | None
    late: frozenset[tuple[int, int, str]]
    """Writes that may yet be made: over which metadata, which ones, by whom."""
    fails: int
    losses: int
    repairs: int
    unheard: int


class BrokenError(AssertionError):
    """A promise does not hold."""


Ops = tuple[object, ...]
_METAS: list[LedgerMetadata] = []
_NUMBERS: dict[LedgerMetadata, int] = {}


def number(metadata: LedgerMetadata) -> int:
    """Metadata by number: also their version, since none ever comes back."""
    found = _NUMBERS.get(metadata)
    if found is None:
        found = _NUMBERS[metadata] = len(_METAS)
        _METAS.append(metadata)
    return found


def _ensemble(first: int, bookies: tuple[int, ...]) -> Ensemble:
    return Ensemble(first, 0, tuple(f"b{n}" for n in bookies))


def _segment(ensemble: Ensemble) -> tuple[int, tuple[int, ...]]:
    return ensemble.first_entry_id, tuple(int(b[1:]) for b in ensemble.bookies)


@cache
def segments(meta: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(map(_segment, _METAS[meta].ensembles))


@cache
def closed_at(meta: int) -> int | None:
    metadata = _METAS[meta]
    return metadata.last_entry_id if metadata.is_closed else None


@cache
def members_of(meta: int, entry: int) -> tuple[int, ...]:
    return [bookies for first, bookies in segments(meta) if first <= entry][-1]


@cache
def decided(kind: str, arguments: Ops, meta: int) -> int:
    """What a decision makes of metadata; -1 if it refuses."""
    make = getattr(decisions, kind)
    decide = make(*arguments) if kind != "start_recovery" else make
    try:
        return number(decide(_METAS[meta]))
    except LedgerFencedError:
        return -1


@cache
def from_memory(known: int, wanted: int) -> int:
    """Wanted metadata with the earlier ensembles as they once were known."""
    last = _METAS[wanted].ensembles[-1]
    old = [e for e in _METAS[known].ensembles if e.first_entry_id < last.first_entry_id]
    metadata = _METAS[wanted]
    return number(
        LedgerMetadata(
            metadata.ledger_id,
            metadata.config,
            metadata.state,
            (*old, last),
            metadata.created_ms,
            metadata.last_entry_id,
            metadata.length,
        )
    )


ORDER = list(LedgerState)


@cache
def allowed(before: int, after: int, who: str) -> str:
    """What is wrong with a change, if anything is."""
    old, new = _METAS[before], _METAS[after]
    if ORDER.index(new.state) < ORDER.index(old.state):
        return "the state went back"
    if old.is_closed and old.last_entry_id != new.last_entry_id:
        return "a closed ledger has another end"
    if who != "repair":
        kept = old.ensembles if old.is_closed else old.ensembles[:-1]
        if new.ensembles[: len(kept)] != kept:
            return "an ensemble was changed that is not its own"
    return ""


def first_state(rules: Rules) -> State:
    metadata = LedgerMetadata(
        1, LedgerConfig(3, 3, ACKS), LedgerState.OPEN, (_ensemble(0, (0, 1, 2)),), 0
    )
    meta = number(metadata)
    slots = tuple(Slot(n, -1, failed=False) for n in SLOTS)
    return State(
        meta,
        True,
        (ALIVE,) * 4,
        Writer(OPEN, meta, 0, -1, -1, slots, None),
        (Recovery(IDLE), Recovery(IDLE)),
        None,
        frozenset(),
        rules.fails,
        rules.losses,
        rules.repairs,
        rules.unheard,
    )


def has(bookie: int, entry: int) -> bool:
    return bool(bookie >> (FIRST_ENTRY + entry) & 1)


class Model:
    """Where each state leads to."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    # -- what must hold ------------------------------------------------------------------------

    def check(self, state: State) -> None:
        writer, end = state.writer, closed_at(state.meta)
        if end is not None and writer.lac > end:
            raise BrokenError(f"closed at {end}, confirmed up to {writer.lac}")
        needed = ACKS if state.losses == self.rules.losses else ACKS - 1
        for entry in range(max(writer.lac, -1 if end is None else end) + 1):
            named = members_of(state.meta, entry)
            holders = sum(has(state.bookies[n], entry) for n in set(named))
            if holders < needed:
                raise BrokenError(f"{holders} copies of entry {entry}")
        if writer.phase in (OPEN, CLOSING):
            first, named = segments(writer.known)[-1]
            for slot in writer.slots:
                alive = slot.bookie in named and state.bookies[slot.bookie] & ALIVE
                if slot.failed or not alive:
                    continue
                for entry in range(first, slot.acked + 1):
                    if not has(state.bookies[slot.bookie], entry):
                        raise BrokenError(f"bookie {slot.bookie} counts for {entry}")

    def _put(self, state: State, after: int, who: str) -> State:
        wrong = allowed(state.meta, after, who)
        if wrong:
            raise BrokenError(f"{who}: {wrong}: {_METAS[state.meta]} became {_METAS[after]}")
        if who == "owner" and not state.guard:
            raise BrokenError("the former owner wrote")
        late = frozenset(each for each in state.late if each[0] == after)
        return state._replace(meta=after, late=late)

    # -- what may happen -----------------------------------------------------------------------

    def following(self, state: State) -> Iterator[State]:
        yield from self._weather(state)
        yield from self._writes(state)
        for index in (0, 1):
            yield from self._recovers(state, index)
        yield from self._repairs(state)

    def _weather(self, state: State) -> Iterator[State]:
        if state.losses:
            for n in range(4):
                bookies = (*state.bookies[:n], 0, *state.bookies[n + 1 :])
                yield state._replace(bookies=bookies, losses=state.losses - 1)
        for over, wanted, who in state.late:
            if who == "owner" and not state.guard and not self.rules.no_guard:
                continue
            if over == state.meta:
                yield self._put(state, wanted, who)

    def _asks(
        self, state: State, known: int, kind: str, arguments: Ops, who: str
    ) -> Iterator[tuple[str, int, State]]:
        """One attempt to make a decision true: the outcome, what is known then, and the state.

        "done", "refused", "lost" (the guard), "unheard" or "again" (after a conflict).
        """
        wanted = decided(kind, arguments, known)
        if wanted == -1:
            yield "refused", known, state
            return
        if wanted == known:
            yield "done", known, state
            return
        if who == "owner" and not state.guard and not self.rules.no_guard:
            yield "lost", known, state
            return
        if known != state.meta:
            if self.rules.conflict_is_written_over:
                yield "done", wanted, self._put(state, wanted, who)
            elif self.rules.earlier_from_memory and who == "owner":
                again = decided(kind, arguments, state.meta)
                if again in (-1, state.meta):
                    yield "again", state.meta, state
                else:
                    mixed = from_memory(known, again)
                    yield "done", mixed, self._put(state, mixed, who)
            else:
                yield "again", state.meta, state
            return
        made = self._put(state, wanted, who)
        yield "done", wanted, made
        if state.unheard:
            unheard = state.unheard - 1
            yield "unheard", made.meta, made._replace(unheard=unheard)
            late = state.late | {(known, wanted, who)}
            yield "unheard", known, state._replace(late=late, unheard=unheard)

    # The writer.

    def _writes(self, state: State) -> Iterator[State]:
        writer = state.writer
        if writer.phase == CLOSING:
            asked = self._asks(state, writer.known, "close", (writer.lac, 0), "owner")
            for outcome, known, after in asked:
                phase = {"done": CLOSED, "refused": STOPPED, "lost": STOPPED}.get(outcome, CLOSING)
                if outcome == "unheard" and self.rules.unknown_is_failed:
                    phase = OPEN
                    known = writer.known
                going = writer._replace(phase=phase, known=known)
                yield after._replace(
                    writer=_ended(going, phase) if phase in (CLOSED, STOPPED) else going
                )
        if writer.phase != OPEN:
            return
        if writer.pushed < self.rules.entries:
            yield state._replace(
                writer=writer._replace(pushed=writer.pushed + 1, sent_lac=writer.lac)
            )
        if writer.change is None and 0 < writer.pushed == writer.lac + 1:
            yield state._replace(writer=writer._replace(phase=CLOSING))
        for index, slot in enumerate(writer.slots):
            if slot.failed:
                continue
            bookie = state.bookies[slot.bookie]
            fails = state.fails - bool(bookie & ALIVE)
            failed = Slot(slot.bookie, -1, failed=True)
            if fails >= 0:
                yield self._slot(state._replace(fails=fails), index, failed)
            if slot.acked + 1 < writer.pushed and bookie & ALIVE:
                if bookie & FENCED:
                    yield state._replace(writer=_ended(writer, STOPPED))
                    continue
                entry = slot.acked + 1
                stored = _with(state.bookies, slot.bookie, 1 << (FIRST_ENTRY + entry))
                after = state._replace(bookies=stored)
                yield self._slot(after, index, slot._replace(acked=entry))
                if fails >= 0:  # it is there, and the answer is lost
                    yield self._slot(after._replace(fails=fails), index, failed)
        yield from self._changes(state)

    def _slot(self, state: State, index: int, slot: Slot) -> State:
        """The writer has heard of one slot."""
        writer = state.writer
        slots = (*writer.slots[:index], slot, *writer.slots[index + 1 :])
        lac = sorted(each.acked for each in slots if not each.failed)
        confirmed = max(writer.lac, lac[-ACKS] if len(lac) >= ACKS else -1)
        writer = writer._replace(slots=slots, lac=confirmed)
        lost = sum(each.failed for each in slots) > len(slots) - ACKS
        if lost and writer.change is None and self._spare(slots) is None:
            writer = _ended(writer, STOPPED)
        return state._replace(writer=writer)

    def _spare(self, slots: tuple[Slot, ...]) -> int | None:
        taken = {slot.bookie for slot in slots}
        return next((n for n in range(4) if n not in taken), None)

    def _changes(self, state: State) -> Iterator[State]:
        writer = state.writer
        if writer.change is None:
            failed = [i for i, slot in enumerate(writer.slots) if slot.failed]
            spare = self._spare(writer.slots)
            if failed and spare is not None:
                bookies = [slot.bookie for slot in writer.slots]
                bookies[failed[0]] = spare
                before = segments(writer.known)[-1]
                change = Change(writer.lac + 1, before, tuple(bookies))
                if self.rules.replacement_counts_at_once:
                    writer = _installed(writer, change, writer.lac)
                yield state._replace(writer=writer._replace(change=change))
            return
        change = writer.change
        arguments = (_ensemble(*change.before), _ensemble(change.first, change.bookies))
        for outcome, known, after in self._asks(
            state, writer.known, "change_ensemble", arguments, "owner"
        ):
            changed = writer._replace(known=known)
            if outcome in ("refused", "lost"):
                changed = _ended(changed, STOPPED)
            elif outcome == "done":
                first = change.first - 1
                if self.rules.replacement_lacks_confirmed:
                    first = writer.lac
                if not self.rules.replacement_counts_at_once:
                    changed = _installed(changed, change, first)
                changed = changed._replace(change=None)
            elif outcome == "unheard" and self.rules.unknown_is_failed:
                changed = changed._replace(change=None, known=writer.known)
            yield after._replace(writer=changed)

    # Recovery.

    def _recovers(self, state: State, index: int) -> Iterator[State]:
        recovery = state.recoveries[index]
        if recovery.phase in (DONE, GONE):
            return
        who = "auto" if index else "new owner" if not state.guard else "owner"

        def with_(changed: Recovery, after: State = state) -> State:
            both = list(after.recoveries)
            over = changed.phase in (IDLE, DONE, GONE)
            both[index] = Recovery(changed.phase) if over else changed
            return after._replace(recoveries=(both[0], both[1]))

        if recovery.phase == IDLE:
            phase = MARK if closed_at(state.meta) is None else DONE
            if self._is_due(state, index):
                yield with_(Recovery(phase, state.meta))
            if index == 0 and state.guard and self.rules.new_owner:
                yield with_(Recovery(phase, state.meta), state._replace(guard=False))
        elif recovery.phase == MARK:
            for outcome, known, after in self._asks(
                state, recovery.known, "start_recovery", (), who
            ):
                phase = FENCE if outcome == "done" else GONE if outcome == "lost" else MARK
                if closed_at(known) is not None:
                    phase = DONE
                yield with_(recovery._replace(phase=phase, known=known), after)
        elif recovery.phase == FENCE:
            yield from self._fences(state, recovery, with_)
        elif recovery.phase == READ:
            yield from self._reads(state, recovery, with_)
        elif recovery.phase == END:
            ours = tuple(_ensemble(*segment) for segment in recovery.segments)
            arguments = (_METAS[recovery.known], ours, recovery.entry - 1, 0)
            current = recovery.asked  # by now the metadata that it knows
            for outcome, known, after in self._asks(state, current, "end_recovery", arguments, who):
                phase = {"done": DONE, "lost": GONE, "refused": IDLE}.get(outcome, END)
                yield with_(recovery._replace(phase=phase, asked=known), after)

    def _is_due(self, state: State, index: int) -> bool:
        if index == 0:  # after a fence, or again
            return self.rules.owner_recovers and (state.writer.phase == STOPPED or not state.guard)
        _, bookies = segments(state.meta)[-1]
        lost = any(not state.bookies[n] & ALIVE for n in bookies)
        return self.rules.auto_recovery and lost and closed_at(state.meta) is None

    def _fences(self, state: State, recovery: Recovery, with_) -> Iterator[State]:  # type: ignore[no-untyped-def]
        first, bookies = segments(recovery.known)[-1]
        if recovery.asked < len(bookies):
            yield with_(recovery._replace(asked=recovery.asked + 1))
            n = bookies[recovery.asked]
            if state.bookies[n] & ALIVE:
                after = state._replace(bookies=_with(state.bookies, n, FENCED))
                fenced = recovery.fenced | 1 << recovery.asked
                yield with_(recovery._replace(asked=recovery.asked + 1, fenced=fenced), after)
            return
        if recovery.fenced.bit_count() <= len(bookies) - ACKS:
            yield with_(Recovery(GONE))
            return
        known = [
            state.writer.sent_lac
            for i, n in enumerate(bookies)
            if recovery.fenced >> i & 1 and has(state.bookies[n], self.rules.entries - 1)
        ]
        entry = max([first - 1, *known]) + 1
        segment = ((first, bookies),)
        yield with_(recovery._replace(phase=READ, entry=entry, segments=segment))

    def _reads(self, state: State, recovery: Recovery, with_) -> Iterator[State]:  # type: ignore[no-untyped-def]
        """It asks for the next entry; each of those that are there may not answer."""
        _, bookies = segments(recovery.known)[-1]
        entry = recovery.entry
        for silent in (-1, *bookies):
            asked = [n for n in bookies if n != silent and state.bookies[n] & ALIVE]
            if silent >= 0 and not state.bookies[silent] & ALIVE:
                continue
            after = state
            for n in asked:
                after = after._replace(bookies=_with(after.bookies, n, FENCED))
            if entry < self.rules.entries and any(has(state.bookies[n], entry) for n in asked):
                yield from self._copies(after, recovery, with_)
            elif len(asked) > len(bookies) - ACKS:
                end = recovery._replace(phase=END, asked=recovery.known)
                yield with_(end, after)
            else:
                yield with_(Recovery(GONE), after)

    def _copies(self, state: State, recovery: Recovery, with_) -> Iterator[State]:  # type: ignore[no-untyped-def]
        """What was found is written to all; one of them may refuse, and is replaced if possible."""
        entry, bit = recovery.entry, 1 << (FIRST_ENTRY + recovery.entry)
        _, bookies = recovery.segments[-1]
        for refusing in (-1, *bookies):
            if refusing >= 0 and not state.bookies[refusing] & ALIVE:
                continue
            after, failed, members = state, recovery.failed, list(bookies)
            for i, n in enumerate(bookies):
                if failed >> i & 1:
                    continue
                if n != refusing and state.bookies[n] & ALIVE:
                    after = after._replace(bookies=_with(after.bookies, n, bit))
                else:
                    failed |= 1 << i
            yield with_(Recovery(GONE), after)  # it dies after it has written some
            spare = next(n for n in range(4) if n not in members)
            if failed and state.bookies[spare] & ALIVE:
                slot = failed.bit_length() - 1
                members[slot] = spare
                failed &= ~(1 << slot)
                after = after._replace(bookies=_with(after.bookies, spare, bit))
            if failed.bit_count() > len(bookies) - ACKS:
                yield with_(Recovery(GONE), after)
                continue
            ours = recovery.segments
            if tuple(members) != bookies:
                ours = (*(s for s in ours if s[0] < entry), (entry, tuple(members)))
                if self.rules.recovery_stores_replacements:
                    stored = number(_METAS[state.meta].with_ensemble(_ensemble(*ours[-1])))
                    yield with_(Recovery(GONE), state._replace(meta=stored))
            yield with_(recovery._replace(entry=entry + 1, segments=ours, failed=failed), after)

    # Repair.

    def _repairs(self, state: State) -> Iterator[State]:
        repair = state.repair
        if repair is not None:
            arguments = (repair.first, f"b{repair.lost}", f"b{repair.copy}")
            for outcome, known, after in self._asks(
                state, repair.known, "replace_lost", arguments, "repair"
            ):
                going = repair._replace(known=known) if outcome in ("again", "unheard") else None
                yield after._replace(repair=going)
            return
        if not state.repairs or state.losses == self.rules.losses:
            return
        found, end = segments(state.meta), closed_at(state.meta)
        for i, (first, bookies) in enumerate(found):
            if i + 1 < len(found):
                last = found[i + 1][0] - 1
            elif end is not None:
                last = end
            else:
                continue
            lost = [n for n in bookies if not state.bookies[n] & ALIVE]
            copy = next(n for n in range(4) if n not in bookies)
            if not lost or not state.bookies[copy] & ALIVE:
                continue
            after = state
            for entry in range(first, last + 1):
                if any(has(state.bookies[n], entry) for n in bookies):
                    bit = 1 << (FIRST_ENTRY + entry)
                    after = after._replace(bookies=_with(after.bookies, copy, bit))
            yield after._replace(
                repair=Repair(state.meta, first, lost[0], copy), repairs=state.repairs - 1
            )


def _with(bookies: tuple[int, ...], n: int, bits: int) -> tuple[int, ...]:
    return (*bookies[:n], bookies[n] | bits, *bookies[n + 1 :])


def _ended(writer: Writer, phase: str) -> Writer:
    """It writes no more: what it knew makes no difference."""
    return Writer(phase, 0, 0, writer.lac, writer.sent_lac, (), None)


def _installed(writer: Writer, change: Change, through: int) -> Writer:
    """The replacement has its slot, and is sent everything behind ``through``."""
    slots = tuple(
        slot if slot.bookie == bookie else Slot(bookie, through, failed=False)
        for slot, bookie in zip(writer.slots, change.bookies, strict=True)
    )
    return writer._replace(slots=slots)


def explore(rules: Rules, limit: int = 10**9) -> int:
    """Visit all states, the first ``limit`` at most; their number. ``BrokenError`` with the way."""
    model, start = Model(rules), first_state(rules)
    came_from: dict[State, State | None] = {start: None}
    waiting = deque([start])
    while waiting and len(came_from) < limit:
        state = waiting.popleft()
        try:
            for after in model.following(state):
                if after not in came_from:
                    came_from[after] = state
                    model.check(after)
                    waiting.append(after)
        except BrokenError as e:
            way: list[str] = []
            step: State | None = state
            while step is not None:
                way.append(f"{step} {_METAS[step.meta]}")
                step = came_from[step]
            raise BrokenError(f"{e}\n" + "\n".join(reversed(way))) from None
    return len(came_from)
