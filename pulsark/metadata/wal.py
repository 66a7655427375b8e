"""Detects a write-ahead log of SQLite that is damaged before its last transaction.

SQLite silently ends a log at the first frame with a wrong checksum, and considers the rest to be a
transaction that a crash interrupted. But each transaction is synced before the next begins. So if
frames of a later transaction follow, the damaged transaction was durable and acknowledged, and to
end the log there would undo it.

https://www.sqlite.org/fileformat2.html#the_write_ahead_log describes the file.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
_LOW = 0xFFFFFFFF


def first_loss(log: bytes) -> int | None:
    """The offset of the first damaged frame that a later transaction follows.

    ``None`` if there is none; then only the last transaction can be missing.
    """
    if len(log) < _HEADER.size + _FRAME.size:
        return None
    magic, _, page_size, _, *salts, sum_1, sum_2 = _HEADER.unpack_from(log)
    words = "<" if magic == _MAGIC else ">"
    sound = magic | 1 == _MAGIC | 1 and _checksum(words, log[:24], 0, 0) == (sum_1, sum_2)
    if page_size < 512 or page_size & (page_size - 1):
        return None if sound else 0
    place, step = _HEADER.size, _FRAME.size + page_size
    if not sound:
        # SQLite ignores the whole log. Each frame names the log it belongs to.
        salts = list(_FRAME.unpack_from(log, place)[2:4])
        return 0 if _transactions_from(log, place, step, salts) > 1 else None
    sums = (sum_1, sum_2)
    while place + step <= len(log):
        _, _, *frame_salts, frame_1, frame_2 = _FRAME.unpack_from(log, place)
        sums = _checksum(words, log[place : place + 8], *sums)
        sums = _checksum(words, log[place + _FRAME.size : place + step], *sums)
        if frame_salts != salts or sums != (frame_1, frame_2):
            return place if _transactions_from(log, place, step, salts) > 1 else None
        place += step
    return None


def _transactions_from(log: bytes, place: int, step: int, salts: list[int]) -> int:
    """How many transactions have frames of this log from ``place`` on.

    The frame at ``place`` always counts. The last frame of a transaction has the database's size.
    """
    ended, open_ = 0, True
    first = place
    while place + step <= len(log):
        _, size, *frame_salts, _, _ = _FRAME.unpack_from(log, place)
        if frame_salts == salts or place == first:
            open_ = size == 0
            ended += not open_
        place += step
    return ended + open_


def _checksum(words: str, data: bytes, sum_1: int, sum_2: int) -> tuple[int, int]:
    """SQLite's checksum, over pairs of 32-bit words."""
    numbers = iter(struct.unpack(f"{words}{len(data) // 4}I", data))
    for first, second in zip(numbers, numbers, strict=True):
        sum_1 = sum_1 + first + sum_2 & _LOW
        sum_2 = sum_2 + second + sum_1 & _LOW
    return sum_1, sum_2
