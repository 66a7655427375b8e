"""What happened in a run, and whether that keeps the promises.

Pure: a test collects a ``History`` and asserts that ``violations`` is empty. The unit tests plant
each kind of damage and see it found. The checks are those of a log: sets and orders, no search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Payload = tuple[str, int]
"""(producer, sequence): the identity of a message, carried in its payload."""

REPORTED_MAX = 5


class Id(NamedTuple):
    """A message id; ordered within a partition."""

    partition: int
    ledger_id: int
    entry_id: int
    batch_index: int = -1


class Delivery(NamedTuple):
    """A message that a consumer got in its ``session``-th connection."""

    session: int
    id: Id


@dataclass(slots=True)
class Subscription:
    """What one subscription's only consumer saw. Sessions count its connections.

    ``confirmed`` and ``confirmed_up_to`` hold the session in which the ACK_RESPONSE arrived; an
    ack that was sent and never answered is in neither.
    """

    name: str
    deliveries: list[Delivery] = field(default_factory=list)
    confirmed: dict[Id, int] = field(default_factory=dict)
    confirmed_up_to: list[tuple[Id, int]] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """``sent``: every payload handed to a producer, and its partition where that was chosen.

    ``receipts``: the id of each confirmed send. ``log``: the final read of every partition from
    its first message on, in the order of delivery.
    """

    sent: set[Payload] = field(default_factory=set)
    receipts: dict[Payload, Id] = field(default_factory=dict)
    log: list[tuple[Id, Payload]] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)


def violations(history: History) -> list[str]:
    """Every broken promise, as sentences; long lists are cut."""
    found: list[str] = []
    for check in (_lost, _phantoms, _identity, _log_order, _first_order, _repeats):
        found += _some(check(history))
    for subscription in history.subscriptions:
        found += _some(_acks_that_came_back(subscription))
    return found


def _some(problems: Iterable[str]) -> list[str]:
    problems = list(problems)
    cut = problems[:REPORTED_MAX]
    if len(problems) > len(cut):
        cut.append(f"... and {len(problems) - len(cut)} more of this kind")
    return cut


def _lost(history: History) -> Iterator[str]:
    """Each confirmed send is in the log, under the id of its receipt."""
    by_id = dict(history.log)
    received = {payload for _, payload in history.log}
    for payload, receipt in history.receipts.items():
        if payload not in received:
            yield f"lost: {payload} was confirmed as {receipt} and is not in the log"
        elif by_id.get(receipt) != payload:
            yield f"moved: {payload} was confirmed as {receipt}, which holds {by_id.get(receipt)}"


def _phantoms(history: History) -> Iterator[str]:
    """Nothing is in the log that was not sent."""
    for id_, payload in history.log:
        if payload not in history.sent:
            yield f"phantom: {payload} at {id_} was never sent"


def _identity(history: History) -> Iterator[str]:
    """An id names one message, and is read once."""
    seen: dict[Id, Payload] = {}
    for id_, payload in history.log:
        if id_ in seen:
            yield f"id twice: {id_} for {seen[id_]} and {payload}"
        seen[id_] = payload
    owners: dict[Id, Payload] = {}
    for payload, receipt in history.receipts.items():
        if receipt in owners:
            yield f"id twice: {receipt} confirmed {owners[receipt]} and {payload}"
        owners[receipt] = payload


def _log_order(history: History) -> Iterator[str]:
    """A reader gets the ids of a partition in rising order."""
    last: dict[int, Id] = {}
    for id_, _ in history.log:
        previous = last.get(id_.partition)
        if previous is not None and id_ < previous:
            yield f"read order: {id_} came after {previous}"
        last[id_.partition] = id_


def _first_order(history: History) -> Iterator[str]:
    """First occurrences rise per producer and partition."""
    seen: set[Payload] = set()
    last: dict[tuple[str, int], Payload] = {}
    for id_, payload in sorted(history.log):
        if payload in seen:
            continue
        seen.add(payload)
        place = (payload[0], id_.partition)
        previous = last.get(place)
        if previous is not None and payload[1] < previous[1]:
            yield f"order: {payload} at {id_} is first seen after {previous}"
        last[place] = payload


def _repeats(history: History) -> Iterator[str]:
    """A send is repeated only while it is not confirmed: no copy follows the confirmed one."""
    for id_, payload in history.log:
        receipt = history.receipts.get(payload)
        if receipt is None or id_ == receipt:
            continue
        if id_.partition != receipt.partition:
            yield f"repeat: {payload} is in partition {id_.partition} and at {receipt}"
        elif id_ > receipt:
            yield f"repeat: {payload} at {id_} again, after it was confirmed as {receipt}"


def _acks_that_came_back(subscription: Subscription) -> Iterator[str]:
    """Nothing is delivered in a later session than the one that confirmed its ack."""
    name = subscription.name
    highest: dict[int, dict[int, Id]] = {}  # partition -> session -> id acked up to in it
    for id_, session in subscription.confirmed_up_to:
        of_partition = highest.setdefault(id_.partition, {})
        of_partition[session] = max(id_, of_partition.get(session, id_))
    for session, id_ in subscription.deliveries:
        confirmed = subscription.confirmed.get(id_)
        if confirmed is not None and confirmed < session:
            yield f"ack came back: {name} confirmed {id_} and got it in session {session}"
        for earlier, last in highest.get(id_.partition, {}).items():
            if earlier < session and id_[:3] <= last[:3]:
                yield f"ack came back: {name} confirmed up to {last}, got {id_} in {session}"
