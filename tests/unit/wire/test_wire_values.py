"""Hashes, message ids and ack sets: values on which clients and brokers must agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.ack_set import full_mask, mask_of_words, words_of_mask
from pulsark.wire.hashes import (
    boost_hash,
    bundle_hash,
    java_string_hash,
    murmur3_32,
    topics_hash,
)
from pulsark.wire.message_id import MessageId, position_of
from pulsark.wire.position import EARLIEST, LATEST

# -- hashes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("hello", 0x5E918D2),
        ("keykeykeykeykey1", 434058482),
        ("keykeykey2", 42978643),  # negative before the sign goes
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two units of UTF-16
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello", 0x248BFA47),
        ("test", 0x3A6BD213),
        ("k1", 2110152746),
        ("k2", 1479966664),
        ("key1", 462881061),
        ("key2", 1936800180),
        ("key01", 39696932),
        ("key02", 751761803),
    ],
)
def test_murmur3_32(text: str, expected: int) -> None:
    assert murmur3_32(text) == murmur3_32(text.encode()) == expected


@pytest.mark.parametrize(
    ("key", "partition"), [("key0", 512), ("key1", 103), ("k" * 8, 355), ("été", 166)]
)
def test_boost_hash_gives_the_partition_that_the_client_chose(key: str, partition: int) -> None:
    """Seen with pulsar-client 3.13 and a topic of 997 partitions."""
    assert boost_hash(key.encode()) % 997 == partition


@given(st.binary(max_size=40))
def test_key_hashes_have_31_bits(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for value in (boost_hash(data), murmur3_32(data), java_string_hash(text)):
        assert 0 <= value < 2**31


def test_bundle_hash() -> None:
    assert bundle_hash("123456789") == 0xCBF43926


def test_topics_hash() -> None:
    assert topics_hash([]) == "00000000"
    assert topics_hash(["123456789"]) == "839206e3"
    topics = [f"persistent://public/default/{name}" for name in "cab"]
    assert topics_hash(topics) == topics_hash(sorted(topics)) != topics_hash(topics[:2])


# -- message ids -----------------------------------------------------------------------------

ledger_numbers = st.integers(0, 2**63 - 1)
small_numbers = st.one_of(st.just(-1), st.integers(0, 2**31 - 1))
message_ids = st.builds(
    MessageId, ledger_numbers, st.just(-1) | ledger_numbers, small_numbers, small_numbers
) | st.just(MessageId(*EARLIEST))


@given(message_ids)
def test_message_ids_come_back(message_id: MessageId) -> None:
    assert MessageId.parse(str(message_id)) == message_id
    assert MessageId.from_json(message_id.to_json()) == message_id
    data = pb.MessageIdData()
    message_id.fill(data)
    data = pb.MessageIdData.FromString(data.SerializeToString())
    assert (data.partition, data.batch_index) == message_id[2:]
    assert position_of(data) == message_id.position or message_id.ledger_id == LATEST.ledger_id


def test_message_id_text() -> None:
    assert str(MessageId(5, 6)) == "5:6"
    assert str(MessageId(5, 6, batch_index=2)) == "5:6:2"
    assert str(MessageId(5, 6, 0)) == "5:6:0:-1"
    assert MessageId.parse("5:6:-1:2") == MessageId.parse("5:6:2")
    assert MessageId.parse("-1:-1") == MessageId(*EARLIEST)


def test_ends_of_a_topic_on_the_wire() -> None:
    data = pb.MessageIdData()
    MessageId(*EARLIEST).fill(data)
    assert data.ledgerId == data.entryId == 2**64 - 1
    assert position_of(data) == EARLIEST
    assert position_of(pb.MessageIdData(ledgerId=2**63 - 1, entryId=0)) == LATEST
    assert position_of(pb.MessageIdData(ledgerId=5, entryId=2**64 - 1)) == (5, -1)


def test_the_message_before_another() -> None:
    assert MessageId(5, 3).before() == MessageId(5, 2)
    assert MessageId(5, 0).before() == MessageId(5, -1)
    assert MessageId(5, 3, batch_index=0).before() == MessageId(5, 2)
    assert MessageId(5, 3, batch_index=4).before() == MessageId(5, 3, batch_index=3)
    assert MessageId(*EARLIEST).before() == MessageId(*EARLIEST)


def test_message_ids_are_ordered() -> None:
    ids = [
        MessageId(*EARLIEST),
        MessageId(0, -1),
        MessageId(0, 0),
        MessageId(0, 0, batch_index=0),
        MessageId(0, 0, batch_index=1),
        MessageId(0, 1),
        MessageId(1, 0),
        MessageId(*LATEST),
    ]
    shuffled = ids[::2] + ids[1::2]
    assert sorted(shuffled) == ids


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5:",
        ":5",
        "a:b",
        "5:6:7:8:9",
        "-2:0",
        "-1:3",
        "1:-2",
        "5:6:-2",
        "+5:6",
        "5 :6",
        "٣:1",
        "1_0:1",
        "9223372036854775808:0",
        "5:6:2147483648",
        "5:6:0:99999999999",
        "5" * 5000 + ":1",
    ],
)
def test_what_is_no_message_id(text: str) -> None:
    with pytest.raises(ValueError, match="message id"):
        MessageId.parse(text)


# -- ack sets --------------------------------------------------------------------------------


@given(st.integers(0, 2**200))
def test_ack_sets_come_back(mask: int) -> None:
    words = words_of_mask(mask)
    assert mask_of_words(words) == mask
    assert mask_of_words([*words, 0, 0]) == mask
    assert not words or words[-1] != 0
    pb.MessageIdData(ledgerId=0, entryId=0, ack_set=words)  # they fit


@given(st.sets(st.integers(0, 300)))
def test_a_set_bit_is_a_message_that_is_left(indexes: set[int]) -> None:
    words = words_of_mask(sum(1 << i for i in indexes))
    left = {i for i in range(301) if i // 64 < len(words) and words[i // 64] >> i % 64 & 1}
    assert left == indexes


def test_full_masks() -> None:
    assert [words_of_mask(full_mask(n)) for n in (0, 1, 64, 65)] == [[], [1], [-1], [-1, 1]]
    assert mask_of_words([]) == 0
