"""Which partition a message goes to, chosen as clients do, so that a key has one partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.wire.hashes import boost_hash, java_string_hash, murmur3_32

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
