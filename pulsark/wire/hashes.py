"""Hash functions that clients and brokers must agree on.

All key hashes are cut to 31 bits, so that ``hash % partitions`` is the same in every language.
"""

from __future__ import annotations

import zlib
from array import array
from typing import TYPE_CHECKING

import google_crc32c
import mmh3

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_INT_MAX = 0x7FFFFFFF
_WORD = 2**64 - 1
_BOOST_STEP = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio
_BOOST_FACTOR = (_BOOST_STEP * _BOOST_STEP) & _WORD


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
    digest = TopicsHash()
    digest.add(sorted(topics))
    return digest.text


class TopicsHash:
    """The hash of very many topics, computed in parts."""

    def __init__(self) -> None:
        self._crc = 0
        self._empty = True

    def add(self, topics: Sequence[str]) -> None:
        """The next ones, in ascending order."""
        if topics:
            joined = ",".join(topics) if self._empty else "," + ",".join(topics)
            self._crc = google_crc32c.extend(self._crc, joined.encode())
            self._empty = False

    @property
    def text(self) -> str:
        """What clients compare."""
        return self._crc.to_bytes(4, "little").hex()


def boost_hash(data: bytes) -> int:
    """``boost::hash`` of a 64-bit machine: routing of the C++ and Python clients by default.

    Boost has changed the function over time; this is what pulsar-client 3.13 was built with.
    """
    weight = _multiply_folded(_BOOST_STEP)
    value = weight ^ len(data)
    for start in range(0, len(data) + 1, 8):  # the last block may be short, or empty
        block = int.from_bytes(data[start : start + 8], "little")
        weight = (weight + _BOOST_STEP) & _WORD
        value ^= _multiply_folded((block + weight) & _WORD)
    return _multiply_folded((value + weight) & _WORD) & _INT_MAX


def _multiply_folded(value: int) -> int:
    product = value * _BOOST_FACTOR
    return (product & _WORD) ^ (product >> 64)
