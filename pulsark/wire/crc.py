"""CRC-32C of a part of some bytes."""

from __future__ import annotations

from typing import Final

from google_crc32c import extend, value

LARGE_BYTES: Final = 64 * 1024
"""From this size on, a copy takes longer than going back over what comes before the part."""

_ONES: Final = 0xFFFFFFFF
_STEPS: Final = tuple(extend(_ONES, bytes((index,))) ^ _ONES for index in range(256))
"""What a byte does to the register: they differ in their upper bytes, so a step can be undone."""
_INDEX_OF_UPPER: Final = {step >> 24: index for index, step in enumerate(_STEPS)}


def crc32c_from(data: bytes, start: int) -> int:
    """The checksum of what begins at ``start``, a small number.

    The library takes only ``bytes``, whole. So a large one is not cut: the register begins such
    that the bytes before ``start`` leave it as it is at the beginning of a checksum.
    """
    if len(data) < LARGE_BYTES:
        return value(data[start:])  # type: ignore[no-any-return]
    register = _ONES
    for byte in reversed(data[:start]):
        index = _INDEX_OF_UPPER[register >> 24]
        register = (register ^ _STEPS[index]) << 8 | index ^ byte
    return extend(register ^ _ONES, data)  # type: ignore[no-any-return]
