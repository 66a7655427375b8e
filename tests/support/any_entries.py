"""Entries with whatever bytes a client can publish, as strategies of hypothesis.

Metadata are made field by field as they stand on the wire: in any order, again, left out, with the
numbers at the borders of their types, with text that is none, with fields that nobody knows.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
from hypothesis import strategies as st

from pulsark.errors import ProtocolError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.compression import compress
from pulsark.wire.entry import checked_counts, entry_without_checksum

BORDERS = sorted(
    {0, 1, 127, 128, 999, 253_402_300_799_999, 253_402_300_800_000, 2**64 - 1000}
    | {2**bits + more for bits in (15, 31, 32, 53, 62, 63) for more in (-1, 0, 1)}
    | {(2**63 - 1) // 1000 + more for more in (-1, 0, 1)}
    | {2**64 - 1, 2**64 - 2**31}
)
"""Numbers at which a type or a unit ends; as the wire has them, without a sign."""

numbers = st.one_of(st.sampled_from(BORDERS), st.integers(0, 300), st.integers(0, 2**64 - 1))
small = st.integers(0, 4)
flags = st.sampled_from([0, 1, 1, 2, 2**64 - 1])
texts = st.one_of(
    st.sampled_from([b"", b"a", b"k", b"\xff\xfe", b"\xed\xa0\x80", b"\x00", "é".encode() * 70]),
    st.binary(max_size=6),
)
large = st.integers(0, 20_000).map(lambda size: b"x" * size)


def varint(number: int) -> bytes:
    """As protobuf writes it."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def field(number: int, value: int | bytes) -> bytes:
    """A field with its tag."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def _maybe(number: int, values: Any) -> Any:
    return st.one_of(st.just(b""), values.map(lambda value: field(number, value)))


pairs = st.tuples(_maybe(1, texts), _maybe(2, st.one_of(texts, large))).map(b"".join)
unknown = st.one_of(
    st.tuples(st.integers(100, 4000), st.one_of(numbers, texts)).map(lambda f: field(*f)),
    st.sampled_from([varint(150 << 3 | 5) + b"abcd", varint(151 << 3 | 1) + b"abcdefgh"]),
)


def _fields(kinds: dict[int, Any], required: dict[int, Any]) -> Any:
    """Fields of a message: what is required mostly first, then any, again and out of order."""
    usual = st.tuples(
        *(
            st.one_of(*3 * [v.map(lambda x, n=n: field(n, x))], st.just(b""))
            for n, v in required.items()
        )
    ).map(b"".join)
    others = [values.map(lambda x, n=n: field(n, x)) for n, values in {**required, **kinds}.items()]
    more = st.lists(st.one_of(*others, unknown), max_size=5).map(b"".join)
    ordered = st.tuples(*(_maybe(n, values) for n, values in sorted(kinds.items()))).map(b"".join)
    return st.tuples(usual, st.one_of(more, ordered)).map(b"".join)


singles = _fields(
    {
        1: pairs, 2: texts, 4: flags, 5: numbers, 6: flags, 7: texts, 8: numbers, 9: flags,
        10: flags,
    },
    {},
)  # fmt: skip
"""``SingleMessageMetadata`` but for the size of the payload."""

payloads = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"", b'{"a":1}', b'{"a":' * 200, b"[" * 3000, b"\x02x", b"1e999", b"\xff" * 9]
    ),
    large,
)


def _member(single: bytes, payload: bytes, claimed: int | None) -> bytes:
    size = b"" if claimed is None else field(3, claimed)
    head = single + size
    return struct.pack(">I", len(head)) + head + payload


def _true_member(single: bytes, payload: bytes) -> bytes:
    return _member(single, payload, len(payload))


members = st.one_of(
    st.builds(_true_member, singles, payloads),
    st.builds(_true_member, singles, payloads),
    st.builds(_member, singles, payloads, st.one_of(st.none(), numbers)),
    st.binary(max_size=12),
)
batches = st.lists(members, min_size=1, max_size=6)

heads = _fields(
    {
        4: pairs, 5: texts, 6: texts, 7: texts, 8: st.sampled_from([0, 1, 2, 3, 4, 5, 2**31]),
        9: st.one_of(small, numbers), 12: numbers,
        13: st.tuples(_maybe(1, texts), _maybe(2, texts)).map(b"".join), 14: texts, 15: texts,
        16: st.one_of(st.just(bytes(8)), texts), 17: flags, 18: texts, 19: numbers,
        20: st.sampled_from([0, 1, 20, 1001, 2**31 - 1, 2**64 - 1]), 22: numbers, 23: numbers,
        24: numbers, 25: flags, 26: texts, 27: st.one_of(small, numbers), 28: numbers,
        29: st.one_of(small, numbers), 30: flags, 31: flags,
    },
    {1: st.sampled_from([b"p", b"", b"\xff"]), 2: numbers, 3: numbers},
)  # fmt: skip
"""``MessageMetadata`` but for what says how the payload is made."""

kinds = st.sampled_from([pb.NONE, pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])


def _entry(
    head: bytes, count: int | None, kind: pb.CompressionType, wrong: int | None, payload: bytes
) -> bytes:
    """``wrong``: what is said of its size in place of the truth."""
    if kind:
        size = len(payload) if wrong is None else wrong
        head += field(8, int(kind)) + field(9, size)
        payload = compress(kind, payload)
    return _finished(head, count, payload)


def _finished(head: bytes, count: int | None, payload: bytes) -> bytes:
    if count is not None:
        head += field(11, count)
    body = struct.pack(">I", len(head)) + head + payload
    return b"\x0e\x01" + struct.pack(">I", google_crc32c.value(body)) + body


def _batch(
    head: bytes, members: list[bytes], count: int, kind: pb.CompressionType, wrong: int | None
) -> bytes:
    return _entry(head, len(members) + count, kind, wrong, b"".join(members))


wrongs = st.one_of(st.none(), st.none(), st.integers(0, 3000), st.just(2**31 - 1))
any_entry = st.one_of(
    st.builds(_entry, heads, st.none(), kinds, wrongs, payloads),
    st.builds(_batch, heads, batches, st.just(0), kinds, wrongs),
    st.builds(_batch, heads, batches, st.sampled_from([0, 0, 1, -1, 2**31 - 9]), kinds, wrongs),
    st.builds(_finished, heads, st.one_of(st.none(), small, numbers), payloads),
    st.builds(_finished, st.binary(max_size=30), st.none(), payloads),
)


def is_accepted(entry: bytes) -> bool:
    """Whether a broker takes an entry from a producer."""
    try:
        return checked_counts(entry) is not None
    except ProtocolError:
        return False


published = st.one_of(any_entry, any_entry.map(entry_without_checksum)).filter(is_accepted)
"""What a broker takes."""
