"""Values as servers keep them that count versions from 0 after each deletion. Pure.

A line with format, base and checksum is before the value. Its version is the *base* plus the one
that the server counts. The base is above all versions that the path had before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google_crc32c import value as crc32c

from pulsark.errors import CorruptMetadataError

FORMAT: Final = 1
_HEAD_BYTES_MAX: Final = 48


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored at a path."""

    value: bytes
    base: int


def encode(path: str, value: bytes, base: int) -> bytes:
    """What the server is to keep."""
    return b"%d %d %08x\n" % (FORMAT, base, _checksum(path, value, base)) + value


def decode(path: str, data: bytes) -> Stored | None:
    """The value in what the server keeps, if there is one; ``CorruptMetadataError``."""
    if not data:
        return None
    end = data.find(b"\n", 0, _HEAD_BYTES_MAX)
    try:
        version, *rest = (data[:end] if end > 0 else b"").split(b" ")
        number = int(version)
        if number > FORMAT:
            raise CorruptMetadataError(
                f"the value of {path} in the metadata store has format {number}: "
                "a newer release wrote it"
            )
        base, checksum = int(rest[0]), int(rest[1], 16)
    except (ValueError, IndexError):
        raise CorruptMetadataError(
            f"the data of {path} in the metadata store were not written by Pulsark, or are damaged"
        ) from None
    value = data[end + 1 :]
    if checksum != _checksum(path, value, base):
        raise CorruptMetadataError(f"the value of {path} in the metadata store is damaged")
    return Stored(value, base)


def _checksum(path: str, value: bytes, base: int) -> int:
    return int(crc32c(b"%s\0%d\0" % (path.encode(), base) + value))
