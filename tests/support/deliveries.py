"""What the subscriptions of a topic promise, checked as messages are delivered and acknowledged.

Pure: a simulation tells what happened in its order, ``Broken`` is raised at the first event that
breaks a promise. The letters are those of the checker's assertions: C1 nothing is lost, C2 nothing
is invented, C3 order, C4 an id names one message, C6 an acknowledgement does not come back and
nothing is skipped. (C5, duplicates, shows in the log alone: see ``history``.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from tests.support.history import Id, Payload


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Identities:
    """Which message an id names, over all readers (C2 and C4)."""

    sent: set[Payload]
    payloads: dict[Id, Payload] = field(default_factory=dict)

    def check(self, id_: Id, payload: Payload) -> None:
        if payload not in self.sent:
            raise Broken(f"C2: {payload} at {id_} was never sent")
        known = self.payloads.setdefault(id_, payload)
        if known != payload:
            raise Broken(f"C4: {id_} was {known} and is {payload}")


@dataclass(slots=True)
class Deliveries:
    """One subscription. A consumer is named by a number that no other connection had."""

    name: str
    ordered: bool
    """Exclusive and Failover: a consumer gets everything, in order, from the cursor on."""
    by_key: bool
    """Key_Shared."""
    identities: Identities
    seen: set[Id] = field(default_factory=set)
    """Delivered to anybody, ever."""
    asked: set[Id] = field(default_factory=set)
    """Acknowledged by a client; whether the broker knows is not known."""
    confirmed: set[Id] = field(default_factory=set)
    """Acknowledged, and the broker said so."""
    held: dict[int, dict[Id, str]] = field(default_factory=dict)
    """What each consumer has and did not acknowledge, with its key."""
    _last_of_key: dict[str, Id] = field(default_factory=dict)
    _open_of_key: dict[str, set[Id]] = field(default_factory=dict)
    """Seen, and not acknowledged by anybody."""
    _last_of_consumer: dict[int, Id] = field(default_factory=dict)
    _passed: list[tuple[Id | None, Id]] = field(default_factory=list)
    """Neighbours in the deliveries to one consumer: nothing unacknowledged is between them."""

    def delivered(self, consumer: int, id_: Id, payload: Payload, key: str) -> None:
        """A consumer got a message."""
        self.identities.check(id_, payload)
        if id_ in self.confirmed:
            raise Broken(f"C6: {self.name} got {id_} again, after its ack was confirmed")
        if self.ordered:
            self._check_order(consumer, id_)
        elif self.by_key:
            self._check_key(consumer, id_, key)
        else:
            self._check_owner(consumer, id_)
        self.seen.add(id_)
        self.held.setdefault(consumer, {})[id_] = key

    def _check_order(self, consumer: int, id_: Id) -> None:
        last = self._last_of_consumer.get(consumer)
        if last is not None and id_ <= last:
            raise Broken(f"C3: {self.name} delivered {id_} after {last}")
        self._passed.append((last, id_))
        self._last_of_consumer[consumer] = id_

    def _check_owner(self, consumer: int, id_: Id) -> None:
        for other, held in self.held.items():
            if other != consumer and id_ in held:
                raise Broken(f"C6: {self.name} gave {id_} to two consumers at once")

    def _check_key(self, consumer: int, id_: Id, key: str) -> None:
        for other, held in self.held.items():
            if other != consumer and key in held.values():
                raise Broken(f"C3: {self.name} gave key {key} to two consumers: {id_}")
        if id_ not in self.seen:
            last = self._last_of_key.get(key)
            if last is not None and id_ < last:
                raise Broken(f"C3: {self.name} first delivered {id_} of {key} after {last}")
            self._last_of_key[key] = id_
        mine = self.held.get(consumer, {})
        waiting = [i for i in self._open_of_key.get(key, ()) if i < id_ and i not in mine]
        if waiting:
            raise Broken(f"C3: {self.name} delivered {id_} of {key} while {min(waiting)} waits")
        if id_ not in self.asked:
            self._open_of_key.setdefault(key, set()).add(id_)

    def acked(self, consumer: int, ids: Iterable[Id]) -> None:
        """A consumer sent acknowledgements."""
        for id_ in ids:
            self.asked.add(id_)
            key = self.held.get(consumer, {}).pop(id_, "")
            self._open_of_key.get(key, set()).discard(id_)

    def ack_confirmed(self, ids: Iterable[Id]) -> None:
        """The broker answered them."""
        self.confirmed.update(ids)

    def returned(self, consumer: int, ids: Collection[Id] | None = None) -> None:
        """A consumer gave messages back, or all: it left, or asked for them again."""
        held = self.held.get(consumer, {})
        for id_ in list(held) if ids is None else ids:
            held.pop(id_, None)
        if ids is None:
            self._last_of_consumer.pop(consumer, None)

    def finish(self, log: dict[Id, Payload], drained: set[Id]) -> None:
        """The end: ``log`` is the topic, ``drained`` what new consumers were given at last."""
        lost = [id_ for id_ in log if id_ not in self.seen]
        if lost:
            raise Broken(f"C1: {self.name} never delivered {lost[0]} ({len(lost)} in all)")
        skipped = [id_ for id_ in log if id_ not in self.asked and id_ not in drained]
        if skipped:
            raise Broken(f"C6: {self.name} skipped {skipped[0]}, which nobody acknowledged")
        phantoms = [id_ for id_ in self.seen if id_ not in log]
        if phantoms:
            raise Broken(f"C2: {self.name} delivered {phantoms[0]}, which the topic does not have")
        ordered = sorted(log)
        for before, after in self._passed:
            if before is None:
                continue
            for id_ in ordered[ordered.index(before) + 1 : ordered.index(after)]:
                if id_ not in self.asked:
                    raise Broken(f"C3: {self.name} passed over {id_} between {before} and {after}")
