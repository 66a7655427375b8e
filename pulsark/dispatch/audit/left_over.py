"""Events that a broker could not write before it stopped, kept for its next process.

If all brokers stop at once, the one that has the audit's topic may be gone before the others are
done. What is left of them is one value of the metadata store; records are kept as they are, so that
those that were stored after all are known by their digests.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.errors import BadVersionError
from pulsark.metadata.paths import audit_left_path
from pulsark.metadata.store import ANY_VERSION
from pulsark.security.audit.chain import AuditRecord, Head
from pulsark.security.audit.events_waiting import WaitingEvent
from pulsark.security.audit.limits import AUDIT_LEFT_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.store import MetadataStore

    Made = tuple[AuditRecord, int]


log = logging.getLogger(__name__)


class LeftOver(NamedTuple):
    """What there is, the records before the events."""

    records: Sequence[Made] = ()
    events: Sequence[WaitingEvent] = ()
    """Of which no records were made yet."""


class AuditLeftOver:
    """That of one broker."""

    def __init__(self, metadata: MetadataStore, whose: Callable[[], str]) -> None:
        self._metadata = metadata
        self._whose = whose

    async def keep(self, left: LeftOver) -> int:
        """Keep it; returns how many events had room, the oldest ones. ``MetadataError``."""
        room = AUDIT_LEFT_BYTES_MAX
        lines: dict[str, list[Any]] = {"records": [], "events": []}
        for kind, line in _lines(left):
            room -= len(json.dumps(line))
            if room < 0:
                break
            lines[kind].append(line)
        value = json.dumps({"version": 1, **lines}, separators=(",", ":")).encode()
        await self._metadata.put(audit_left_path(self._whose()), value, ANY_VERSION)
        return sum(map(len, lines.values()))

    async def found(self) -> LeftOver:
        """What is kept. ``MetadataError``."""
        stored = await self._metadata.get(audit_left_path(self._whose()))
        if stored is None:
            return LeftOver()
        try:
            kept = json.loads(stored.value)
            return LeftOver(
                [
                    (AuditRecord(Head(seq, digest), payload.encode()), time_ms)
                    for seq, digest, payload, time_ms in kept["records"]
                ],
                [WaitingEvent(event, lost) for event, lost in kept["events"]],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = audit_left_path(self._whose())
            log.error("audit: %s, events of before the stop, cannot be understood: %r", path, error)
            return LeftOver()

    async def drop(self) -> None:
        """It is in the topic. ``MetadataError``."""
        path = audit_left_path(self._whose())
        stored = await self._metadata.get(path)
        if stored is not None:
            try:
                await self._metadata.delete(path, stored.version)
            except BadVersionError:
                return  # an attempt was made that nobody answered


def _lines(left: LeftOver) -> Iterable[tuple[str, list[Any]]]:
    for record, time_ms in left.records:
        yield "records", [*record.head, record.payload.decode(), time_ms]
    for event, lost in left.events:
        yield "events", [event, lost]
