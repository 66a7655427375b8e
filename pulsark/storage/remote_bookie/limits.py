"""Bounds of the protocol of bookie processes. `pulsark.limits` says what belongs here."""

from __future__ import annotations

BOOKIE_HELLO_BYTES_MAX = 64 * 1024
"""Largest frame before both sides have identified themselves."""

BOOKIE_RUN_BYTES_MAX = 16 << 20
"""Room in a frame beyond the largest entry. Longer runs are sent in parts."""

BOOKIE_READ_BYTES_MAX = 4 << 20
"""The answer to a read ends after this many bytes."""

BOOKIE_CALLS_MAX = 256
"""Requests of a connection under way, not counting adds. Above it, the socket is not read."""

BOOKIE_UNANSWERED_BYTES_MAX = 16 << 20
"""Bytes of adds of a connection that are not durable yet. Above it, the socket is not read."""

BOOKIE_SEND_BYTES = 1 << 20
"""Bytes that the kernel may hold on the way to a bookie, if the system allows so many. The more it
holds, the less often two processes wake each other for one run."""

BOOKIE_MEMORY_BYTES_MAX = 16 << 20
"""Memory that a broker shares with a bookie process. What does not fit passes the socket."""

BOOKIE_MEMORY_ADD_BYTES_MIN = 8 << 10
"""Payloads of an add that go by shared memory. Smaller ones pass the socket with their frame."""

BOOKIE_PENDING_BYTES_MAX = 256 << 20
"""Bytes in a broker that wait for one bookie. Above it, the broker gives the bookie up."""

BOOKIE_CONNECTIONS_MAX = 64
"""Connections to a bookie process; each broker has two."""
