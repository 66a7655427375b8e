"""Records: events with a number, each with the digest of the one before. Pure.

Changing, removing or inserting a record breaks the chain there, unless all later records are made
anew; so the digest of the newest goes to the log once a day. A gap in the numbers, in a chain that
holds, means events that were lost because the broker could not write them in time.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from pulsark.security.audit.limits import AUDIT_EVENTS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pulsark.security.audit.events import Event

BEGIN = ""
"""What the first record has in place of the digest of one before."""


class Head(NamedTuple):
    """The last record of a chain."""

    seq: int
    digest: str


NOTHING = Head(-1, BEGIN)


class AuditRecord(NamedTuple):
    """A record as it is written; its own number and digest."""

    head: Head
    payload: bytes


def record(event: Event, before: Head, lost: int = 0) -> AuditRecord:
    """The record that follows, after ``lost`` events that were lost."""
    seq = before.seq + 1 + lost
    payload = _canonical({**event, "seq": seq, "prev_hash": before.digest})
    return AuditRecord(Head(seq, _digest(payload)), payload)


def head_of(found: dict[str, Any]) -> Head:
    """Number and digest of a record that was read, in whatever order its fields are."""
    return Head(found["seq"], _digest(_canonical(found)))


class ChainFault(NamedTuple):
    """Where a chain is not whole, and what that means."""

    broker: str
    seq: int
    problem: str


class Checker:
    """Walks the records of all brokers in the order of the topic."""

    def __init__(self, digest: str = "") -> None:
        """``digest``: one that was noted elsewhere, and that some record should have."""
        self.records = 0
        self.lost = 0
        """Events that brokers could not write."""
        self.heads: dict[str, Head] = {}
        """By broker."""
        self.starts_without_stop = 0
        """How often a broker was killed; the events in its memory were lost."""
        self.found_digest = False
        """Whether a record has the digest that was looked for."""
        self._digest = digest
        self._stopped: dict[str, bool] = {}
        self._recent: dict[str, deque[Head]] = {}

    def add(self, found: object) -> Iterator[ChainFault]:
        """What is wrong with the next record."""
        self.records += 1
        if not is_record(found):
            yield ChainFault("", -1, "this is no record of an audit")
            return
        broker, head = found["broker"], head_of(found)
        recent = self._recent.setdefault(broker, deque(maxlen=2 * AUDIT_EVENTS_AT_ONCE))
        if head in recent:
            return  # written twice, because it was not known whether it was stored
        recent.append(head)
        self.found_digest = self.found_digest or head.digest == self._digest
        self._note_start(broker, found.get("operation"))
        before = self.heads.get(broker)
        self.heads[broker] = head
        if before is None:
            if found["prev_hash"] != BEGIN:
                yield ChainFault(broker, head.seq, "what was before it is not there any more")
        elif found["prev_hash"] != before.digest:
            yield ChainFault(broker, head.seq, f"does not follow record {before.seq}")
        elif head.seq <= before.seq:
            yield ChainFault(broker, head.seq, f"comes after record {before.seq}")
        else:
            self.lost += head.seq - before.seq - 1

    def end(self) -> Iterator[ChainFault]:
        """What is wrong with all of them together."""
        if self._digest and not self.found_digest:
            yield ChainFault("", -1, f"no record has the digest {self._digest}")

    def _note_start(self, broker: str, operation: object) -> None:
        if operation == "start" and not self._stopped.get(broker, True):
            self.starts_without_stop += 1
        self._stopped[broker] = operation == "stop"


def checked(records: Iterable[object]) -> list[ChainFault]:
    """What is wrong with records, all in all."""
    checker = Checker()
    return [finding for each in records for finding in checker.add(each)]


def is_record(found: object) -> TypeGuard[dict[str, Any]]:
    """Whether what was read is a record."""
    return (
        isinstance(found, dict)
        and type(found.get("seq")) is int
        and isinstance(found.get("prev_hash"), str)
        and isinstance(found.get("broker"), str)
    )


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _canonical(found: dict[str, Any]) -> bytes:
    text = json.dumps(_valued(found), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _valued(found: Any) -> Any:
    """Without what is null, which a table has for what is not there."""
    if isinstance(found, dict):
        return {key: _valued(value) for key, value in found.items() if value is not None}
    return found
