"""Checksums of a part of some bytes, which must not copy large ones."""

from __future__ import annotations

import random
import tracemalloc

import google_crc32c
import pytest

from pulsark.wire.crc import LARGE_BYTES, crc32c_from


@pytest.mark.parametrize("start", [0, 1, 6, 7, 64])
@pytest.mark.parametrize("size", [64, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 4321])
def test_is_the_checksum_of_the_part(size: int, start: int) -> None:
    data = random.Random(size + start).randbytes(size)
    assert crc32c_from(data, start) == google_crc32c.value(data[start:])


def test_whatever_comes_before_the_part_a_change_in_it_shows() -> None:
    rest = random.Random(1).randbytes(LARGE_BYTES)
    expected = google_crc32c.value(rest)
    for byte in range(256):
        assert crc32c_from(bytes([byte, 255 - byte]) + rest, 2) == expected
    assert crc32c_from(b"\x0e\x01" + rest[:-1] + bytes([rest[-1] ^ 1]), 2) != expected


def test_a_large_one_is_not_copied() -> None:
    data = bytes(1 << 20)
    crc32c_from(data, 6)
    tracemalloc.start()
    try:
        crc32c_from(data, 6)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < LARGE_BYTES
