"""The tracker of delayed messages against a model that is a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pulsark.dispatch.subscription.delayed_tracker import NEVER_MS, DelayedDeliveryTracker
from pulsark.storage.delayed.delayed_pages import (
    decode_header,
    decode_page,
    encode_header,
    encode_page,
)
from pulsark.wire.position import Position

POSITIONS = st.builds(Position, st.integers(1, 4), st.integers(0, 12))
TIMES = st.integers(1, 30)


class TrackerMachine(RuleBasedStateMachine):
    """The process dies at any time; the buckets that it stored are what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = DelayedDeliveryTracker(heap_keys=4, bucket_keys=6, page_keys=2)
        self.times: dict[Position, int] = {}
        self.model: dict[Position, int] = {}
        self.bookies: dict[int, list[bytes]] = {}
        self.unreadable: set[int] = set()
        self.next_id = 1
        self.exact = True
        """Whether there is no key whose position is not tracked."""

    @rule(messages=st.dictionaries(POSITIONS, TIMES, min_size=1, max_size=20))
    def add_some(self, messages: dict[Position, int]) -> None:
        for position, deliver_at in messages.items():
            self.add(position, deliver_at)

    def add(self, position: Position, deliver_at: int) -> None:
        # What a message says never changes.
        self.model[position] = self.times.setdefault(position, deliver_at)
        self.tracker.add(self.model[position], position)

    @rule(cutoff=TIMES, limit=st.integers(1, 8))
    def due(self, cutoff: int, limit: int) -> None:
        handed_out: set[Position] = set()
        everything = False
        while not everything:
            found, everything = self.tracker.due(cutoff, limit)
            assert not handed_out & set(found)
            assert len(found) <= limit
            handed_out |= set(found)
            for bucket in self.tracker.missing(cutoff):
                everything = False
                self.fetch(bucket, handed_out)
        due = {p for p, ms in self.model.items() if ms <= cutoff}
        assert due <= handed_out
        for position in handed_out:
            ms = self.model.pop(position)
            if ms > cutoff:  # it was handed out because its bucket was lost: back with it
                self.add(position, ms)
        later = min(self.model.values(), default=NEVER_MS)
        asked = self.tracker.next_ms(cutoff)
        assert asked == later if self.exact else asked <= later

    def fetch(self, bucket: object, handed_out: set[Position]) -> None:
        wanted = bucket.wanted()
        assert wanted is not None
        index, info = wanted
        if bucket.bucket_id in self.unreadable:
            handed_out |= set(self.tracker.lost(bucket))
            self.exact = False
        else:
            bucket.give(decode_page(self.bookies[bucket.bucket_id][1 + index], info))

    @rule(fails=st.booleans(), cutoff=TIMES)
    def store(self, fails: bool, cutoff: int) -> None:
        packed = self.tracker.pack()
        if packed is None:
            assert self.tracker.unstored == 0
            return
        bucket, pages = packed
        self.due(cutoff, 3)  # while it is written
        if not fails:
            entries = [encode_header("t", pages), *map(encode_page, pages)]
            self.bookies[self.next_id] = entries
            self.tracker.stored(bucket, self.next_id)
            self.next_id += 1

    @rule(pick=st.randoms(use_true_random=False))
    @precondition(lambda self: self.bookies)
    def break_a_bucket(self, pick: object) -> None:
        self.unreadable.add(pick.choice(sorted(self.bookies)))

    @rule()
    def remove_finished(self) -> None:
        for bucket_id in self.tracker.pop_finished():
            del self.bookies[bucket_id]

    @rule()
    def restart(self) -> None:
        self.tracker = DelayedDeliveryTracker(heap_keys=4, bucket_keys=6, page_keys=2)
        for bucket_id, entries in list(self.bookies.items()):
            if bucket_id in self.unreadable:
                del self.bookies[bucket_id]
            else:
                self.tracker.load(bucket_id, decode_header(entries[0], "t"))
        # What it does not know is read again; what it knows too much is due, and done.
        for position, ms in self.model.items():
            self.tracker.add(ms, position)
        stored = [decode_header(entries[0], "t").positions for entries in self.bookies.values()]
        for position in set(self.tracker.positions) - set(self.model):
            assert any(position in positions for positions in stored)
            self.tracker.positions.discard(position)
            self.exact = False

    @rule(ledger_id=st.integers(1, 3))
    def trim(self, ledger_id: int) -> None:
        self.tracker.drop_ledgers_below(ledger_id)
        self.model = {p: ms for p, ms in self.model.items() if p.ledger_id >= ledger_id}
        self.exact = False

    @rule()
    def clear(self) -> None:
        self.tracker.clear()
        self.model.clear()
        self.remove_finished()
        assert not self.bookies
        self.exact = True

    @invariant()
    def tracks_what_the_model_knows(self) -> None:
        assert set(self.tracker.positions) == set(self.model)


TrackerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestTracker = pytest.mark.feature("F57")(TrackerMachine.TestCase)
