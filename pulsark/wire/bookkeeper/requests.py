"""Requests to a bookie."""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from pulsark.wire.bookkeeper.digests import DigestType
from pulsark.wire.bookkeeper.entries import ENTRY_HEAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.wire.bookkeeper.digests import LedgerKey

PROTOCOL_VERSION: Final = 2
KEY_SIZE: Final = 20
FRAME_BYTES_MAX: Final = 5 * (1 << 20)
"""A bookie's own limit of a frame, length included (``nettyMaxFrameSizeBytes``)."""


class Operation(IntEnum):
    """What is asked. Bookies close the connection of who asks anything else."""

    ADD = 1
    READ = 2
    BATCH_READ = 7


class Flag(IntFlag):
    """Options of a request."""

    FENCE = 1
    """The ledger takes no more entries but those of a recovery."""
    RECOVERY_ADD = 2
    """An add that a fenced ledger takes."""
    HIGH_PRIORITY = 4
    """Before others, and also to a bookie that is read-only as long as its disk has room."""


def header(operation: Operation, flags: int = 0) -> int:
    """The first number of a frame's body."""
    return PROTOCOL_VERSION << 24 | operation << 16 | flags


_ADD = struct.Struct(">II20s32s")
_ADD_CRC32C = struct.Struct(">II20s32sI")
_READ = struct.Struct(">IIqq")
_BATCH = struct.Struct(">IIqqqiq")
_JOINED_BYTES = 16 << 10
"""Smaller runs are joined: a copy costs less than many buffers do."""


class AddFrames(NamedTuple):
    """The frames of a run of entries, the same for each bookie."""

    buffers: list[bytes]
    """To be sent one after the other."""
    size: int
    largest: int
    """The size of the largest frame, length included."""


def encode_adds(
    ledger_id: int,
    first_entry_id: int,
    last_confirmed: int,
    preceding_bytes: int,
    payloads: Sequence[bytes],
    key: LedgerKey,
    flags: int = 0,
) -> AddFrames:
    """Adds of consecutive entries. ``preceding_bytes``: of all payloads before the first."""
    head, master, digest_size = header(Operation.ADD, flags), key.master_key, key.digest_size
    overhead = 4 + KEY_SIZE + ENTRY_HEAD.size + digest_size
    entry_head, length, largest = ENTRY_HEAD.pack, preceding_bytes, 0
    buffers: list[bytes] = []
    if key.digest is DigestType.CRC32C:
        # The usual digest, without a call for each part: this is what an entry costs.
        pack, value, extend = _ADD_CRC32C.pack, google_crc32c.value, google_crc32c.extend
        for entry_id, payload in enumerate(payloads, first_entry_id):
            size = len(payload)
            length += size
            largest = max(largest, size)
            entry = entry_head(ledger_id, entry_id, last_confirmed, length)
            check = extend(value(entry), payload)
            buffers += (pack(size + overhead, head, master, entry, check), payload)
    else:
        for entry_id, payload in enumerate(payloads, first_entry_id):
            size = len(payload)
            length += size
            largest = max(largest, size)
            entry = entry_head(ledger_id, entry_id, last_confirmed, length)
            frame = _ADD.pack(size + overhead, head, master, entry) + key.check(entry, payload)
            buffers += (frame, payload)
    total = length - preceding_bytes + len(payloads) * (overhead + 4)
    if total < _JOINED_BYTES:
        buffers = [b"".join(buffers)]
    return AddFrames(buffers, total, largest + overhead + 4)


def encode_read(ledger_id: int, entry_id: int) -> bytes:
    """Ask for one entry. Of entry -1 the answer is the last one that the bookie holds."""
    return _READ.pack(_READ.size - 4, header(Operation.READ), ledger_id, entry_id)


def encode_fencing_read(ledger_id: int, entry_id: int, key: LedgerKey) -> bytes:
    """The same after fencing the ledger."""
    return (
        _READ.pack(
            _READ.size - 4 + KEY_SIZE, header(Operation.READ, Flag.FENCE), ledger_id, entry_id
        )
        + key.master_key
    )


def encode_batch_read(
    ledger_id: int, first_entry_id: int, request_id: int, count: int, bytes_max: int
) -> bytes:
    """Ask for consecutive entries, at most ``count``, of about ``bytes_max`` in all."""
    return _BATCH.pack(
        _BATCH.size - 4,
        header(Operation.BATCH_READ),
        ledger_id,
        first_entry_id,
        request_id,
        count,
        bytes_max,
    )
