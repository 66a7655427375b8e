"""What remains of entries when only the latest message of each key stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark import limits
from pulsark.storage.managed_ledger import compaction
from pulsark.storage.managed_ledger.compaction import Compaction, CompactionTooLargeError
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.batch import build_batch, read_messages
from pulsark.wire.entry import build_entry, entry_metadata
from pulsark.wire.position import Position

Message = tuple[str | None, bytes]

messages = st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from([b"", b"1", b"22"]))


def metadata() -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)


def single(key: str | None, payload: bytes) -> bytes:
    head = metadata()
    if key is not None:
        head.partition_key = key
    return build_entry(head, payload)


def batch(*members: Message, kind: pb.CompressionType = pb.NONE) -> bytes:
    singles = []
    for key, payload in members:
        one = pb.SingleMessageMetadata()
        if key is not None:
            one.partition_key = key
        singles.append((one, payload))
    return build_batch(metadata(), singles, kind)


def compact(
    entries: list[bytes], *, retain_null_key: bool = False, any_number: bool = False
) -> list[bytes | None]:
    run = Compaction(retain_null_key=retain_null_key, any_number=any_number)
    for i, entry in enumerate(entries):
        run.note(Position(1, i), entry)
    while run.another_pass():
        for i, entry in enumerate(entries):
            run.note(Position(1, i), entry)
    return [run.remains(Position(1, i), entry) for i, entry in enumerate(entries)]


def members(entry: bytes) -> list[Message | None]:
    """Key and payload of each member; ``None`` where compaction removed it."""
    return [
        None if one.compacted_out else (one.partition_key or None, payload)
        for one, payload in read_messages(entry, 1 << 20)
        if one is not None
    ]


def test_the_latest_message_of_a_key_stays_as_it_was_sent() -> None:
    entries = [single("a", b"1"), single("b", b"2"), single("a", b"3")]
    assert compact(entries) == [None, entries[1], entries[2]]


def test_a_tombstone_removes_its_key_and_itself() -> None:
    entries = [single("a", b"1"), single("a", b""), single("b", b"2")]
    assert compact(entries) == [None, None, entries[2]]
    null = metadata()
    null.partition_key, null.null_value = "b", True
    assert compact([entries[2], build_entry(null, b"x")]) == [None, None]


def test_messages_without_a_key() -> None:
    entries = [single(None, b"1"), single("a", b"2")]
    assert compact(entries) == [None, entries[1]]
    assert compact(entries, retain_null_key=True) == entries


@pytest.mark.parametrize("kind", [pb.NONE, pb.LZ4, pb.ZSTD])
def test_members_of_a_batch_keep_their_places(kind: pb.CompressionType) -> None:
    entry = batch(("a", b"1"), ("b", b"2"), ("a", b"3"), kind=kind)
    (left,) = compact([entry])
    assert left is not None
    assert members(left) == [None, ("b", b"2"), ("a", b"3")]
    assert entry_metadata(left).num_messages_in_batch == 3
    assert entry_metadata(left).compression == kind


def test_what_was_compacted_is_compacted_again() -> None:
    (left,) = compact([batch(("a", b"1"), ("a", b"2"), ("b", b"3"))])
    assert left is not None
    again, last = compact([left, single("b", b"4")])
    assert again is not None
    assert last is not None
    assert members(again) == [None, ("a", b"2"), None]


def test_all_chunks_of_the_latest_message_stay() -> None:
    def chunk(uuid: str, number: int) -> bytes:
        head = metadata()
        head.partition_key, head.uuid = "a", uuid
        head.chunk_id, head.num_chunks_from_msg = number, 2
        return build_entry(head, b"x")

    entries = [chunk("u", 0), chunk("u", 1), chunk("v", 0), chunk("v", 1)]
    assert compact(entries) == [None, None, *entries[2:]]


def test_what_cannot_be_looked_into_stays() -> None:
    encrypted = metadata()
    encrypted.encryption_keys.add(key="k", value=b"v")
    encrypted.num_messages_in_batch = 2
    damaged = metadata()
    damaged.num_messages_in_batch = 2
    entries = [build_entry(encrypted, b"?" * 20), build_entry(damaged, b"?" * 20)]
    assert compact(entries) == entries


def test_markers_go() -> None:
    marker = metadata()
    marker.marker_type = 21
    assert compact([build_entry(marker, b"")]) == [None]


def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.COMPACTION_KEYS_MAX > 1
    monkeypatch.setattr(compaction, "COMPACTION_KEYS_MAX", 1)
    with pytest.raises(CompactionTooLargeError, match="more than 1 keys"):
        compact([single("a", b"1"), single("b", b"1")])


def test_all_chunks_stay_also_in_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COMPACTION_KEYS_MAX", 1)
    head = metadata()
    head.partition_key, head.uuid, head.chunk_id, head.num_chunks_from_msg = "a", "u", 0, 2
    entries = [build_entry(head, b"x"), *(single(key, b"1") for key in "bcde"), single("c", b"")]
    left = compact(entries, any_number=True)
    assert left == [entries[0], entries[1], None, entries[3], entries[4], None]


@pytest.mark.parametrize("keys_max", [1, 2, 5, 64])
@given(
    entries=st.lists(
        st.lists(
            st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from([b"", b"1", b"22"])),
            min_size=1,
            max_size=4,
        )
    ),
    alone=st.booleans(),
)
def test_many_passes_come_to_the_same_as_one(
    keys_max: int, entries: list[list[tuple[str, bytes]]], alone: bool
) -> None:
    encoded = [single(*e[0]) if alone else batch(*e) for e in entries]
    expected = compact(encoded)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "COMPACTION_KEYS_MAX", keys_max)
        assert compact(encoded, any_number=True) == expected


@given(st.lists(st.one_of(messages, st.lists(messages, min_size=1, max_size=4))))
def test_what_stays_is_what_a_table_of_the_topic_shows(
    entries: list[Message | list[Message]],
) -> None:
    encoded = [batch(*e) if isinstance(e, list) else single(*e) for e in entries]
    table: dict[str, bytes] = {}
    for entry in entries:
        for key, payload in entry if isinstance(entry, list) else [entry]:
            if key is not None:
                table.pop(key, None)
                if payload:
                    table[key] = payload
    left: dict[str, bytes] = {}
    for entry in compact(encoded):
        if entry is None:
            continue
        head = entry_metadata(entry)
        if head.HasField("num_messages_in_batch"):
            kept = [m for m in members(entry) if m is not None]
        else:
            kept = [(head.partition_key or None, next(read_messages(entry, 1 << 20))[1])]
        for key, payload in kept:
            assert key is not None
            assert key not in left
            left[key] = payload
    assert left == table


@pytest.mark.parametrize(
    "limit", [{"COMPACTION_BATCH_BYTES_MAX": 39}, {"COMPACTION_BATCH_MESSAGES_MAX": 1}]
)
def test_a_batch_that_becomes_very_large_stays_whole(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    entries = [batch(("a", b"1"), ("a", b"2" * 30), kind=pb.LZ4), batch(("b", b"1"), ("b", b"2"))]
    small = entries[1]
    assert compact(entries)[0] != entries[0]
    for name, value in limit.items():
        monkeypatch.setattr(compaction, name, value)
    assert compact(entries)[0] == entries[0]
    if "COMPACTION_BATCH_BYTES_MAX" in limit:
        assert compact([small])[0] != small


def test_large_keys_take_as_little_memory_as_small_ones() -> None:
    keys = [f"{n}" * 100_000 for n in range(4)] + ["#" * 32, "#" * 33]
    entries = [single(key, b"old") for key in keys] + [batch(*[(key, b"new") for key in keys])]
    run = Compaction(retain_null_key=False)
    for i, entry in enumerate(entries):
        run.note(Position(1, i), entry)
    assert len(run._latest) == len(keys)
    assert max(map(len, run._latest)) <= 33
    *old, new = compact(entries)
    assert old == [None] * len(keys)
    assert new == entries[-1]


def test_the_latest_messages_of_large_batches_take_little_memory() -> None:
    run = Compaction(retain_null_key=False)
    large = batch(*[("a", b"x")] * 50_000, ("b", b"y"))
    for i in range(20):
        run.note(Position(1, i), large)
    assert not run.another_pass()
    (bits,) = run._done._in_batches.values()
    assert list(bits) == [49_999, 50_000]
    assert len(bits.serialize()) < 100
