"""Bounds of the client, and the times that it waits. `pulsark.limits` says what belongs here."""

from __future__ import annotations

from dataclasses import dataclass

IN_FLIGHT_BYTES_MAX = 16 << 20
"""Bytes of adds that one bookie has been sent and has not answered."""

IN_FLIGHT_ENTRIES_MAX = 4000
"""The same in entries: a bookie refuses adds when 10,000 wait for one of its threads."""

PENDING_BYTES_MAX = 256 << 20
"""Bytes of adds here that wait for one bookie. Above it, the bookie is given up."""

READ_BYTES_MAX = 1 << 20
"""The answer to a read ends after this many bytes."""

READS_MAX = 64
"""Reads that one bookie is asked for at once; further ones wait here."""

ANSWER_OVERHEAD = 64 << 10
"""Room in an answer beyond the largest frame: heads of the entries of a batch."""

ANSWER_BYTES_MAX = 128 << 20
"""An answer may have so much in any case: messages may have been larger once."""

GAP_ENTRIES_MAX = 16
"""Entries behind an absent one that a read looks for: with striping, a bookie lacks some."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client treats bookies. Seconds, and bytes."""

    connect_seconds: float = 2.0
    """Until a connection stands and the bookie behind it is known to be the same as before."""
    add_seconds: float = 5.0
    """Until an add that was sent is answered. Then the connection is given up with all on it."""
    read_seconds: float = 5.0
    """The same for reads and fences."""
    away_seconds: float = 30.0
    """How long a read or a new ledger waits for a bookie that is away."""
    frame_bytes_max: int = 5 * (1 << 20) + (10 << 10)
    """What bookies take (``nettyMaxFrameSizeBytes``), here as Pulsar sets it. They close the
    connection of who sends more, so it is refused before."""
