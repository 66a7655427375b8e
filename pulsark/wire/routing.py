"""Which partition a message goes to: as the clients choose it, so that a key has one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pulsark.wire.hashes import boost_hash, java_string_hash, murmur3_32

HASHING_SCHEMES: Final[Mapping[str, Callable[[str], int]]] = {
    "JavaStringHash": java_string_hash,
    "Murmur3_32Hash": murmur3_32,
    "BoostHash": lambda key: boost_hash(key.encode()),
}
"""By their names in the clients. The Java and Go clients' default is the first, the C++ and Python
clients' the last."""


def partition_of(key: str, partitions: int, scheme: str) -> int:
    """The partition of a key; one in base64 counts as it is written."""
    return HASHING_SCHEMES[scheme](key) % partitions
