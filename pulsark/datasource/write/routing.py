"""Partitions of many keys at a time, equal to ``wire.routing`` for each of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.write.outgoing import ColumnError
from pulsark.wire.routing import HASHING_SCHEMES

Partitions = npt.NDArray[np.int64]

_MULTIPLIED_KEY_CHARS_MAX = 256
"""Longer keys are hashed one by one: the longest decides how often all are looked at."""


class Router:
    """Routes the messages of one writer to one topic.

    Messages without a key go round the partitions, as many at a time as make a batch, beginning
    with partition ``first``.
    """

    def __init__(self, partitions: int, scheme: str, first: int, batch: int) -> None:
        self._partitions = partitions
        self._scheme = scheme
        self._batch = batch
        self._passed = first * batch

    def route(self, keys: pa.Array, named: Partitions | None = None) -> Partitions:
        """The partition of each message, by its key or null, unless it is ``named``."""
        if named is not None:
            return np.where(named < 0, self.route(keys), named)
        count = len(keys)
        if self._partitions <= 1:
            return np.zeros(count, np.int64)
        if keys.null_count == count:
            return self._round(count)
        found = hashes(keys, self._scheme) % self._partitions
        if keys.null_count:
            without = pc.is_null(keys).to_numpy(False)
            found[without] = self._round(int(without.sum()))
        return found

    def _round(self, count: int) -> Partitions:
        places = np.arange(self._passed, self._passed + count, dtype=np.int64)
        self._passed += count
        return places // self._batch % self._partitions


def named_places(named: pa.Array | None, partitions: int, topic: str) -> Partitions | None:
    """The partitions that rows name, -1 where one names none; ``ColumnError``.

    ``partitions`` of the topic are 0 if it has none.
    """
    if named is None or named.null_count == len(named):
        return None
    found: Partitions = pc.fill_null(named.cast(pa.int64()), -1).to_numpy()
    wrong = found[(found < -1) | (found >= partitions)]
    if len(wrong):
        have = f"partitions 0 to {partitions - 1}" if partitions else "no partitions"
        raise ColumnError(
            f"column 'partition' is {wrong[0]} in a row, but topic {topic} has {have}; null "
            "leaves the choice to the key"
        )
    return found if (found >= 0).any() else None


def hashes(keys: pa.Array, scheme: str) -> Partitions:
    """The hash of each key; that of null means nothing."""
    if scheme == "JavaStringHash" and _is_plain(keys):
        return _java_hashes(keys)
    one = HASHING_SCHEMES[scheme]
    codes = keys.dictionary_encode()
    of_key = np.array([one(key) for key in codes.dictionary.to_pylist()] or [0], np.int64)
    found: Partitions = of_key[pc.fill_null(codes.indices, 0).to_numpy()]
    return found


def _is_plain(keys: pa.Array) -> bool:
    """Whether a byte is a character, and none of the keys is very long."""
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    return longest <= _MULTIPLIED_KEY_CHARS_MAX and bool(pc.all(pc.string_is_ascii(keys)).as_py())


def _java_hashes(keys: pa.Array) -> Partitions:
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset :][: len(keys) + 1]
    buffer = keys.buffers()[2]
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.zeros(0, np.uint8)
    lengths = np.diff(offsets)
    value = np.zeros(len(keys), np.uint32)
    for place in range(int(lengths.max(initial=0))):
        has = lengths > place
        if has.all():
            value = value * np.uint32(31) + data[offsets[:-1] + place]
        else:
            value[has] = value[has] * np.uint32(31) + data[offsets[:-1][has] + place]
    return (value & np.uint32(0x7FFFFFFF)).astype(np.int64)
