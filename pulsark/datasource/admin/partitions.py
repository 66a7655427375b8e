"""What the broker says of the partitions of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pulsark.datasource.options.offsets import NOTHING
from pulsark.wire.message_id import MessageId


class Ledger(NamedTuple):
    """A ledger of a partition: ``entries`` confirmed so far, ``size`` in bytes."""

    ledger_id: int
    entries: int
    size: int


class CompactedPart(NamedTuple):
    """The ledger that has what compaction left of the entries up to ``horizon``."""

    ledger_id: int
    horizon: MessageId
    entries: int
    size: int

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> CompactedPart:
        """Read ``compacted`` of a partition."""
        horizon = MessageId.from_json(data["horizon"])
        return cls(data["ledgerId"], horizon, data["entries"], data["size"])


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the broker said of a topic partition: where it is and what it holds.

    ``ledgers`` may lack those that a stream is through with. ``trimmed`` is the last entry that
    was deleted. ``compacted`` is set if the caller asked for it and the partition was compacted.
    """

    topic: str
    name: str
    partition: int
    topic_id: str
    flight_url: str
    first: MessageId
    last: MessageId
    ledgers: tuple[Ledger, ...]
    trimmed: MessageId = NOTHING
    compacted: CompactedPart | None = None

    @classmethod
    def from_json(cls, topic: str, flight_url: str, data: dict[str, Any]) -> PartitionState:
        """Read one element of ``partitions`` of the ``segments`` answer."""
        first, last, trimmed = data["first"], data["last"], data["trimmed"]
        return cls(
            topic=topic,
            name=data["name"],
            partition=data["partition"],
            topic_id=data["topicId"],
            flight_url=data.get("flightUrl", flight_url),
            first=MessageId.from_json(first),
            last=MessageId.from_json(last),
            ledgers=tuple(
                Ledger(item["ledgerId"], item["entries"], item["size"])
                for item in sorted(data["ledgers"], key=lambda item: item["ledgerId"])
            ),
            trimmed=MessageId.from_json(trimmed),
            compacted=CompactedPart.from_json(data["compacted"]) if "compacted" in data else None,
        )

    def earliest(self) -> MessageId:
        """The last-read place of a reader that starts at the first message there is."""
        if self.compacted is not None:
            return NOTHING  # it may have been trimmed since it was compacted
        if self.first.ledger_id >= 0:
            return self.first.before()
        return MessageId(self.ledgers[0].ledger_id, -1) if self.ledgers else NOTHING

    def latest(self) -> MessageId:
        """The last message there is, or ``earliest`` if there is none."""
        horizon = self.compacted.horizon if self.compacted is not None else NOTHING
        return max(self.last, self.earliest(), horizon)
