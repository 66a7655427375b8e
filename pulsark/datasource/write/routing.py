"""Partitions of many keys at a time, equal to ``wire.routing`` for each of them.

Also which hashing scheme a topic's producers use, by the partitions that keys have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.plan.plan import range_of
from pulsark.datasource.write.outgoing import ColumnError
from pulsark.wire.message_id import MessageId
from pulsark.wire.routing import HASHING_SCHEMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pulsark.datasource.admin.client import SparkAdmin
    from pulsark.datasource.admin.partitions import PartitionState
    from pulsark.datasource.write.write_options import WriteOptions

log = logging.getLogger(__name__)

Partitions = npt.NDArray[np.int64]

_MULTIPLIED_KEY_CHARS_MAX = 256
"""Longer keys are hashed one by one: the longest decides how often all are looked at."""


DEFAULT_SCHEME = "JavaStringHash"
_SAMPLED_ENTRIES = 20
"""The newest entries of each partition that say which scheme its producers use."""

_SAMPLED_PARTITIONS = 16
_OF_CLIENTS = {
    "Pulsar-CPP": "BoostHash",
    "Pulsar-Java": DEFAULT_SCHEME,
    "Pulsar Go": DEFAULT_SCHEME,
}
"""The default scheme of a client, by how its version begins."""


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
    """Return the partitions that rows name, -1 where one names none. Raises ``ColumnError``.

    ``partitions`` of the topic are 0 if it has none: it has one place for all rows then, which may
    have been read from a topic with partitions.
    """
    if named is None or named.null_count == len(named) or not partitions:
        return None
    found: Partitions = pc.fill_null(named.cast(pa.int64()), -1).to_numpy()
    wrong = found[(found < -1) | (found >= partitions)]
    if len(wrong):
        raise ColumnError(
            f"column 'partition' is {wrong[0]} in a row, but topic {topic} has partitions 0 to "
            f"{partitions - 1}. Drop the column (partition, or __partition as it was read), or set "
            "it to null, to leave the choice to the key"
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


def scheme_in_use(
    partitions: Sequence[PartitionState], options: WriteOptions, admin: SparkAdmin
) -> str:
    """Return the hashing scheme by which the newest messages of a topic have their partitions.

    If these do not tell, the scheme of the clients that produce now, else ``DEFAULT_SCHEME``.
    """
    count = len(partitions)
    if count <= 1:
        return DEFAULT_SCHEME
    topic = partitions[0].topic
    step = -(-count // _SAMPLED_PARTITIONS)
    placed: set[tuple[str, int]] = set()
    for state in partitions[::step]:
        placed.update((key, state.partition) for key in _newest_keys(state, options))
    fitting = fitting_schemes(placed, count)
    if len(fitting) == 1:
        return fitting[0]
    if placed and not fitting:
        log.warning(
            "%s: no hashing scheme explains the partitions of its keys, so its producers differ; "
            "writing with %s. Messages of one key may have no order",
            topic,
            DEFAULT_SCHEME,
        )
        return DEFAULT_SCHEME
    return _scheme_of_clients(_client_versions(partitions, admin), fitting)


def fitting_schemes(placed: Collection[tuple[str, int]], partitions: int) -> list[str]:
    """Return the schemes that give each key the partition that it has."""
    return [
        name
        for name, scheme in HASHING_SCHEMES.items()
        if all(scheme(key) % partitions == partition for key, partition in placed)
    ]


def _newest_keys(state: PartitionState, options: WriteOptions) -> Iterator[str]:
    from pulsark.datasource.read.entry_stream import read_entries
    from pulsark.rows import RowBuilder

    last = state.latest()
    after = MessageId(last.ledger_id, max(last.entry_id - _SAMPLED_ENTRIES, -1))
    split = range_of(state, after, MessageId(last.ledger_id, last.entry_id))
    if split is None:
        return
    builder = RowBuilder(state.topic, state.partition, ("key",))
    for chunk in read_entries(
        split,
        patience_s=options.poll_timeout_s,
        fail_on_data_loss=False,
        find_partition=lambda: None,
        credentials=options.credentials,
    ):
        for ledger_id, entry_id, entry in zip(*chunk, strict=True):
            builder.add(ledger_id, entry_id, entry)
    if builder.rows:
        yield from (key for key in builder.finish().column("key").to_pylist() if key is not None)


def _client_versions(partitions: Sequence[PartitionState], admin: SparkAdmin) -> Iterator[str]:
    from pulsark.wire.topic_name import TopicName

    for row in admin.topics.view(TopicName.parse(partitions[0].topic), "producers"):
        yield str(row.get("client_version") or "")


def _scheme_of_clients(versions: Iterable[str], fitting: Sequence[str]) -> str:
    found = {
        scheme
        for version in versions
        for client, scheme in _OF_CLIENTS.items()
        if version.startswith(client) and scheme in fitting
    }
    if len(found) == 1:
        return found.pop()
    return DEFAULT_SCHEME if DEFAULT_SCHEME in fitting else fitting[0]
