"""Hash functions that clients and brokers must agree on.

All key hashes are cut to 31 bits, so that ``hash % partitions`` is the same in every language.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable

import google_crc32c
import mmh3

_INT_MAX = 0x7FFFFFFF
_WORD = 2**64 - 1


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of Java without its sign: routing of the Java client by default."""
    units = array("H", text.encode("utf-16-le", "surrogatepass"))
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & _INT_MAX


def murmur3_32(data: str | bytes) -> int:
    """MurmurHash3 x86 32 bit, seed 0, of UTF-8: slots of Key_Shared, ring of Failover."""
    return mmh3.hash(data, signed=False) & _INT_MAX


def bundle_hash(topic: str) -> int:
    """Place of a full topic name among the bundles of its namespace, 0 to 2**32 - 1."""
    return zlib.crc32(topic.encode())


def topics_hash(topics: Iterable[str]) -> str:
    """Digest of a list of full topic names in any order, as clients compare it."""
    joined = ",".join(sorted(topics)).encode()
    crc: int = google_crc32c.value(joined)
    return crc.to_bytes(4, "little").hex()
