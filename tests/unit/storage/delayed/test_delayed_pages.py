"""Pages and headers of delayed messages, as bytes and back, whole and broken."""

from __future__ import annotations

import contextlib
import json
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import CorruptEntryError, StorageError
from pulsark.storage.delayed.delayed_pages import (
    FORMAT_VERSION,
    KEY,
    PageInfo,
    decode_header,
    decode_page,
    encode_header,
    encode_page,
    info_of,
    pages_of,
)

KEYS = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1))


def keys_of(keys: list[tuple[int, int, int]]) -> list[bytes]:
    return sorted(KEY.pack(*key) for key in keys)


def sample(count: int = 2100, ledgers: int = 3, size: int = 300) -> list[bytes]:
    """Pages as a topic would have them: entries of a few ledgers, due within a day."""
    rng = random.Random(1)
    keys = [
        (1_700_000_000_000 + rng.randrange(86_400_000), 1 + place * ledgers // count, 3 * place)
        for place in range(count)
    ]
    return pages_of(keys_of(keys), size)


@given(st.lists(KEYS, min_size=1, max_size=60, unique_by=lambda key: key[1:]))
def test_pages_and_their_stored_form_are_inverse(keys: list[tuple[int, int, int]]) -> None:
    pages = pages_of(keys_of(keys), 7)
    assert b"".join(pages) == b"".join(keys_of(keys))
    for page in pages:
        assert decode_page(encode_page(page), info_of(page)) == page


@given(st.lists(KEYS, min_size=1, max_size=60, unique_by=lambda key: key[1:]))
def test_headers_and_their_stored_form_are_inverse(keys: list[tuple[int, int, int]]) -> None:
    pages = pages_of(keys_of(keys), 7)
    header = decode_header(encode_header("t", pages), "t")
    assert header.pages == tuple(map(info_of, pages))
    assert [tuple(position) for position in header.positions] == sorted(key[1:] for key in keys)


def test_a_key_takes_a_few_bytes() -> None:
    pages = sample(50_000, 2, 4096)
    stored = len(encode_header("t", pages)) + sum(map(len, map(encode_page, pages)))
    assert stored < 8 * 50_000


@pytest.mark.parametrize("cut", ["end", "start", "middle"])
def test_a_page_that_is_cut_is_corrupt(cut: str) -> None:
    (page,) = sample(200)
    stored = encode_page(page)
    for place in range(0, len(stored), 5):
        broken = {
            "end": stored[:place],
            "start": stored[place + 1 :],
            "middle": stored[:place] + stored[place + 1 :],
        }[cut]
        with pytest.raises(CorruptEntryError):
            decode_page(broken, info_of(page))


def test_a_page_with_a_wrong_byte_is_corrupt_or_harmless() -> None:
    """What the outlines do not show is another position or time, and only a hint."""
    (page,) = sample(200)
    stored, rng = encode_page(page), random.Random(1)
    refused = 0
    for place in range(len(stored)):
        broken = bytearray(stored)
        broken[place] ^= 1 << rng.randrange(8)
        try:
            decoded = decode_page(bytes(broken), info_of(page))
        except CorruptEntryError:
            refused += 1
        else:
            assert info_of(decoded) == info_of(page)
    assert refused > 0.9 * len(stored), "zlib has a checksum"


def test_a_page_of_another_bucket_is_corrupt() -> None:
    one, other, *_ = sample()
    with pytest.raises(CorruptEntryError, match="not what its header says"):
        decode_page(encode_page(one), info_of(other))


def test_a_page_cannot_be_larger_than_announced() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(CorruptEntryError, match="do not end after 40"):
        decode_page(bomb, PageInfo(0, 0, 2))
    with pytest.raises(CorruptEntryError):
        decode_page(zlib.compress(b""), PageInfo(0, 0, 0))


def test_a_header_that_is_cut_is_corrupt() -> None:
    entry = encode_header("t", sample())
    for size in range(0, len(entry), 3):
        with pytest.raises(CorruptEntryError):
            decode_header(entry[:size], "t")
        with pytest.raises(CorruptEntryError):
            decode_header(entry[size + 1 :], "t")


@given(st.data())
def test_a_header_with_wrong_bytes_is_refused_or_read(data: st.DataObject) -> None:
    """Never any other error, which would keep the topic from being loaded."""
    entry = bytearray(encode_header("t", sample()))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(StorageError):
        header = decode_header(bytes(entry), "t")
        assert header.positions
        assert all(info.keys > 0 for info in header.pages)


def changed(**fields: object) -> bytes:
    line, sets = encode_header("t", sample()).split(b"\n", 1)
    return json.dumps({**json.loads(line), **fields}).encode() + b"\n" + sets


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\n",
        b"[]\n",
        b"null\n",
        b"\xff\xfe\n",
        changed(version="1"),
        changed(version=None),
        changed(topicId="other"),
        changed(segments=None),
        changed(segments=[]),
        changed(segments=[[1, 2]]),
        changed(segments=[[1, 2, "many"]]),
        changed(segments=[[2, 1, 1000]]),
        changed(segments=[[1, 2, 1e400]]),
        changed(segments=[[1, 2, 10]]),
        changed(positions=[]),
        changed(positions=[[1, 5]]),
        changed(positions=[[1, -5]]),
        changed(positions=[["x", 1]]),
        changed(positions=[[]]),
        changed(positions=7),
    ],
)
def test_a_header_that_says_nonsense_is_corrupt(entry: bytes) -> None:
    with pytest.raises(CorruptEntryError):
        decode_header(entry, "t")


def test_a_header_of_a_newer_format_is_left_alone() -> None:
    """It is not corrupt: a newer program can read it, so it must not be deleted."""
    with pytest.raises(StorageError, match=f"format {FORMAT_VERSION + 1}") as caught:
        decode_header(changed(version=FORMAT_VERSION + 1), "t")
    assert not isinstance(caught.value, CorruptEntryError)
