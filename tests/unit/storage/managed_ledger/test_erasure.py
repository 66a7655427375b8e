"""What is left of an entry: nothing of what was erased, everything else where it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.rows import RowBuilder, entries_of
from pulsark.storage.managed_ledger.erasure import count, erased_ids, holes_of, without
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import (
    ERASED_MARKER,
    build_entry,
    checksum_ok,
    entry_metadata,
    is_erased,
    message_counts,
    parse_entry,
)
from tests.support.client_view import client_view
from tests.support.tables import entry

SECRET = b"alice@example.org"


def batch(keys: Sequence[str], compression: pb.CompressionType = pb.NONE, **head: object) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1000, **head)
    members = []
    for i, key in enumerate(keys):
        single = pb.SingleMessageMetadata(payload_size=0, partition_key=key, sequence_id=7 + i)
        single.ordering_key = key.encode()
        single.properties.add(key="who", value=key)
        members.append((single, key.encode() * 3))
    return build_batch(metadata, members, compression)


def test_a_message_sent_alone_leaves_a_marker_that_says_nothing() -> None:
    head = pb.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1000, event_time=5)
    head.partition_key = SECRET.decode()
    head.properties.add(key="mail", value=SECRET.decode())
    head.deliver_at_time = 99
    erased = without(build_entry(head, SECRET), None)
    assert SECRET not in erased
    assert checksum_ok(erased)
    header = parse_entry(erased)
    assert (header.marker, header.batched, is_erased(header.metadata)) == (True, False, True)
    assert (header.producer_name, header.sequence_id, header.publish_time) == ("p", 7, 1000)
    assert message_counts(erased)[:4] == (1, False, True, 0)
    assert without(erased, None) == erased


@pytest.mark.parametrize("compression", [pb.NONE, pb.ZSTD, pb.LZ4])
def test_batch_mates_stay_where_they_were(compression: pb.CompressionType) -> None:
    original = batch(["a", SECRET.decode(), "c"], compression)
    erased = without(original, {1})
    before, after = list(read_messages(original, 9999)), list(read_messages(erased, 9999))
    assert [after[0], after[2]] == [before[0], before[2]]
    assert after[1] == (pb.SingleMessageMetadata(compacted_out=True, payload_size=0), b"")
    header = parse_entry(erased)
    assert (header.marker, header.batched, header.messages) == (False, True, 3)
    assert message_counts(erased)[:4] == (3, True, True, 0), "dispatch looks for the holes"
    assert holes_of(erased) == [1]
    assert SECRET not in erased
    assert without(erased, {1}) == erased
    assert holes_of(without(erased, {0})) == [0, 1]


def test_a_batch_of_which_nothing_is_left_keeps_its_sequence_ids() -> None:
    for erased in (without(batch(["a", "b"]), {0, 1}), without(batch(["a", "b"]), None)):
        header = parse_entry(erased)
        assert (header.marker, header.sequence_id) == (True, 7)
        assert header.metadata.highest_sequence_id == 8
    assert parse_entry(without(without(batch(["a", "b"]), {0}), {1})).marker


def test_the_key_of_a_batch_goes_with_the_message_that_it_came_from() -> None:
    outer = {"partition_key": "a", "ordering_key": b"a"}
    first_gone = entry_metadata(without(batch(["a", "b", "c"], **outer), {0}))
    assert (first_gone.partition_key, first_gone.ordering_key) == ("b", b"b")
    stays = entry_metadata(without(batch(["a", "b", "a"], **outer), {0}))
    assert (stays.partition_key, stays.ordering_key) == ("a", b"a")


def test_what_cannot_be_taken_apart_goes_as_a_whole() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    metadata.num_messages_in_batch = 3
    metadata.encryption_keys.add(key="k", value=b"v")
    encrypted = build_entry(metadata, SECRET * 2)
    damaged = batch(["a", "b"])[:-3] + b"\xff\xff\xff"
    for whole in (encrypted, damaged, b"\x0e\x01" + SECRET):
        erased = without(whole, {0}) if whole != damaged else without(whole[:-8], {0})
        assert parse_entry(erased).marker
        assert SECRET not in erased


def test_markers_of_others_stay() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, marker_type=21)
    commit = build_entry(metadata, b"x")
    assert without(commit, None) == commit
    assert not is_erased(metadata)
    metadata.marker_type = ERASED_MARKER
    assert is_erased(metadata)


def test_ids_of_entries_and_of_messages() -> None:
    found = erased_ids([(1, 2, 0), (1, 2, 3), (1, 4, -1), (5, 0, 1), (5, 0, -1), (5, 0, 2)])
    assert found == {1: {2: {0, 3}, 4: None}, 5: {0: None}}
    assert count(found) == (4, 3)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sets(st.integers(0, 5))), min_size=1, max_size=12),
    st.booleans(),
)
def test_rows_of_what_is_left_make_the_same_entries_again(
    wanted: list[tuple[int, set[int]]], twice: bool
) -> None:
    left = []
    builder = RowBuilder.for_table(0)
    for i, (messages, indexes) in enumerate(wanted):
        one = without(entry(i, messages), indexes if messages else None)
        if twice:
            one = without(one, {0})
        left.append(one)
        builder.add(9, i, one)
    rows = builder.finish()
    again = entries_of(rows)
    assert [i for i, _ in again] == list(range(len(left)))
    for (_, found), one in zip(again, left, strict=True):
        assert message_counts(found) == message_counts(one)
        assert client_view(found) == client_view(one)
        assert holes_of(found) == holes_of(one)
    keys = [key for key in rows.column("key").to_pylist() if key is not None]
    expected = sum(
        1
        for one in left
        if not parse_entry(one).marker
        for single, _ in read_messages(one, 9999)
        if single is None or not single.compacted_out
    )
    assert len(keys) == expected
