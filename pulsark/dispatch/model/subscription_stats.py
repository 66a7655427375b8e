"""What statistics say of a subscription beyond its consumers: counters, and its backlog."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Level(Enum):
    """Whose dispatch rate it is, in the words of statistics."""

    SUBSCRIPTION = "Subscription"
    TOPIC = "Topic"
    BROKER = "Broker"


class ExcessKind(Enum):
    """What there is too much of, in the words of statistics."""

    MESSAGES = "Msg"
    BYTES = "Bytes"


@dataclass(slots=True)
class Totals:
    """Other counters since it was loaded, and times in ms since the epoch (0: never)."""

    messages_acked: int = 0
    messages_dropped: int = 0
    entries_expired: int = 0
    last_expire_ms: int = 0
    last_flow_ms: int = 0
    last_acked_ms: int = 0


class Reads(Enum):
    """What a subscription waits for."""

    NOTHING = auto()
    NEW_ENTRIES = auto()
    """Those at the read position, from storage."""
    WAITING_ENTRIES = auto()
    """Some that were read before, from storage."""
    FUTURE_ENTRIES = auto()
    """It is at the end, and consumers have room."""


@dataclass(frozen=True, slots=True)
class BacklogStats:
    """At one moment. All is 0 where nothing is stored."""

    entries: int = 0
    """Not acknowledged as a whole."""
    size: int = 0
    """Bytes behind the mark-delete position, about."""
    delayed: int = 0
    """Unacknowledged entries whose delivery time has not come."""
    delayed_index_bytes: int = 0
    """Memory for knowing which."""
    replay: int = 0
    """Entries that wait to be delivered again."""
    blocked: bool = False
    """Whether dispatch is stopped because too many messages are unacknowledged."""
    acked_ranges: int = 0
    """Ranges of acknowledged entries above the mark-delete position."""
    acked_bytes: int = 0
    """What these take as bitmaps."""
    mark_delete_ms: int = 0
    """When the mark-delete position moved last; 0: never."""
    throttled: Mapping[tuple[ExcessKind, Level], int] = field(default_factory=dict)
    """How often a dispatch rate stopped it, by what there was too much of, and by whose rate."""
