"""Ledgers' metadata in BookKeeper's own forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import CorruptMetadataError, MetadataRefusedError
from pulsark.storage.bookkeeper.nodes import LedgerNode, as_stored, decode_node, new_node
from pulsark.storage.bookkeeper.paths import ledger_node, parents
from pulsark.storage.ledger.metadata import Ensemble, LedgerConfig, LedgerMetadata, LedgerState
from pulsark.storage.proto.bookkeeper_pb2 import LedgerMetadataFormat
from pulsark.wire.bookkeeper.digests import PLAIN, DigestType, LedgerKey

HEADER = b"BookieMetadataFormatVersion\t3\n"
JAVAS = bytes.fromhex(
    "41 0803 1003 1800 20ffffffffffffffffff01 2801 3211 0a03626b31 0a03626b32 0a03626b33 1000"
    "3211 0a03626b31 0a03626b34 0a03626b33 1005 3803 4200 4802 6001".replace(" ", "")
)
TEXT = b"""BookieMetadataFormatVersion\t2
quorumSize: 2
ensembleSize: 3
length: 1234
lastEntryId: 99
state: CLOSED
segment {
  ensembleMember: "host-1:3181"
  ensembleMember: "host-2:3181"
  ensembleMember: "host-3:3181"
  firstEntryId: 0
}
digestType: CRC32
password: "secret"
ackQuorumSize: 2
customMetadata {
  key: "application"
  value: "pulsar"
}
"""
LINES = b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta:1\tb:1\tc:1\n7\ta:1\td:1\tc:1\n"

names = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), min_size=1, max_size=9)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    quorum = draw(st.integers(1, size))
    config = LedgerConfig(size, quorum, draw(st.integers(1, quorum)), draw(st.booleans()))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)))]
    ensembles = tuple(
        Ensemble(
            first, -1 if first else 0, tuple(draw(st.lists(names, min_size=size, max_size=size)))
        )
        for first in firsts
    )
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        draw(st.integers(0, 2**63 - 1)),
        replace(config, owner=draw(names)),
        state,
        ensembles,
        draw(st.integers(0, 2**50)),
        draw(st.integers(-1, 2**62)) if closed else -1,
        draw(st.integers(0, 2**62)) if closed else 0,
    )


def test_a_new_ledger_is_what_java_writes() -> None:
    metadata = LedgerMetadata(
        27,
        LedgerConfig(3, 3, 2),
        LedgerState.OPEN,
        (Ensemble(0, 0, ("bk1", "bk2", "bk3")), Ensemble(5, 10, ("bk1", "bk4", "bk3"))),
        0,
    )
    node = new_node(metadata, PLAIN, 1)
    node.message.ClearField("ctime")
    assert node.encode() == HEADER + JAVAS
    assert decode_node(HEADER + JAVAS) == node
    assert node.token == 1


@given(ledgers(), st.integers(0, 2**63 - 1), st.binary(max_size=5), st.sampled_from(DigestType))
def test_ledgers_come_back_as_they_were(
    metadata: LedgerMetadata, token: int, password: bytes, digest: DigestType
) -> None:
    node = decode_node(new_node(metadata, LedgerKey(digest, password), token).encode())
    assert node.metadata(metadata.ledger_id) == metadata
    assert node.token == token
    assert node.key is not None
    assert (node.key.digest, node.key.password) == (digest, password)


@given(ledgers(), ledgers(), st.sampled_from([1, 2, 3]))
def test_a_change_is_written_in_the_form_that_was_read(
    before: LedgerMetadata, after: LedgerMetadata, form: int
) -> None:
    ledger_id, config = before.ledger_id, before.config
    after = replace(after, ledger_id=ledger_id, config=config, created_ms=before.created_ms)
    size = config.ensemble_size
    ensembles = tuple(replace(e, bookies=(e.bookies * size)[:size]) for e in after.ensembles)
    after = replace(after, ensembles=ensembles)
    node = LedgerNode(form, new_node(before, PLAIN, 3).message)
    read = decode_node(decode_node(node.encode()).changed(after).encode())
    assert read.form == form
    found = read.metadata(ledger_id, before.created_ms)
    if form == 1:  # it has no place for these
        lines = LedgerConfig(size, config.write_quorum, config.write_quorum)
        assert found == replace(after, config=lines)
    else:
        assert found == after
        assert (read.token, read.message.customMetadata) == (3, node.message.customMetadata)


@given(ledgers(), st.lists(st.integers(-1, 2**62), min_size=4, max_size=4))
def test_what_a_node_will_say_is_known_without_reading_it(
    metadata: LedgerMetadata, lengths: list[int]
) -> None:
    pairs = zip(metadata.ensembles, lengths, strict=False)
    given_lengths = replace(metadata, ensembles=tuple(replace(e, length=n) for e, n in pairs))
    node = new_node(given_lengths, PLAIN, 3)
    assert as_stored(given_lengths) == node.metadata(metadata.ledger_id)
    assert node.changed(given_lengths).metadata(metadata.ledger_id) == as_stored(given_lengths)


def test_text_is_read_and_stays_text() -> None:
    node = decode_node(TEXT)
    metadata = node.metadata(5, created_ms=77)
    bookies = ("host-1:3181", "host-2:3181", "host-3:3181")
    assert metadata == LedgerMetadata(
        5, LedgerConfig(3, 2, 2), LedgerState.CLOSED, (Ensemble(0, 0, bookies),), 77, 99, 1234
    )
    assert node.key is not None
    assert (node.key.digest, node.key.password) == (DigestType.CRC32, b"secret")
    assert node.encode() == TEXT


@pytest.mark.parametrize(
    ("end", "state", "last"),
    [
        (b"", LedgerState.OPEN, -1),
        (b"-102\tCLOSED", LedgerState.IN_RECOVERY, -1),
        (b"40\tCLOSED", LedgerState.CLOSED, 40),
    ],
)
def test_lines_are_read_and_stay_lines(end: bytes, state: LedgerState, last: int) -> None:
    node = decode_node(LINES + end)
    metadata = node.metadata(5)
    assert metadata.state is state
    assert metadata.last_entry_id == last
    assert metadata.config == LedgerConfig(3, 2, 2)
    firsts = [(e.first_entry_id, e.length, e.bookies) for e in metadata.ensembles]
    assert firsts == [(0, 0, ("a:1", "b:1", "c:1")), (7, -1, ("a:1", "d:1", "c:1"))]
    assert node.key is None
    assert node.encode() == LINES + end


def test_what_is_not_understood_is_kept() -> None:
    message = LedgerMetadataFormat()
    message.ParseFromString(JAVAS[1:] + bytes.fromhex("c23e0568656c6c6f"))  # field 1000
    node = LedgerNode(3, message)
    metadata = node.metadata(1)
    changed = node.changed(metadata.closed(9, 100))
    assert b"hello" in changed.encode()
    assert decode_node(changed.encode()).metadata(1).last_entry_id == 9
    assert node.metadata(1) == metadata


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b'{"version": 1}',
        b"BookieMetadataFormatVersion\t4\nwhat comes",
        b"BookieMetadataFormatVersion\tx\n",
        HEADER,
        HEADER + JAVAS[:-1],
        HEADER + b"\xff" * 9,
        HEADER + b"\x00",
        b"BookieMetadataFormatVersion\t1\n2\n3\n",
        b"BookieMetadataFormatVersion\t1\n\xff\n",
        b"BookieMetadataFormatVersion\t2\nquorumSize: 2\n",
        b"BookieMetadataFormatVersion\t2\nno: field\n",
    ],
)
def test_what_cannot_be_read_is_an_error(value: bytes) -> None:
    with pytest.raises(CorruptMetadataError):
        decode_node(value)


@pytest.mark.parametrize(
    "wrong",
    [
        TEXT.replace(b"quorumSize: 2", b"quorumSize: 4", 1),
        TEXT.replace(b"firstEntryId: 0", b"firstEntryId: 1"),
        TEXT.replace(b'  ensembleMember: "host-3:3181"\n', b""),
        TEXT[: TEXT.index(b"segment")] + TEXT[TEXT.index(b"digestType") :],
        TEXT.replace(b"ackQuorumSize: 2", b"ackQuorumSize: 0"),
    ],
)
def test_metadata_that_make_no_sense_are_an_error(wrong: bytes) -> None:
    with pytest.raises(CorruptMetadataError):
        decode_node(wrong).metadata(5)


def test_a_ledger_without_bookies_has_no_node() -> None:
    attached = LedgerMetadata(1, LedgerConfig(), LedgerState.CLOSED, (), 0, 9, 100)
    with pytest.raises(MetadataRefusedError):
        new_node(attached, PLAIN, 0)


@given(st.binary(max_size=60))
def test_garbage_is_metadata_or_an_error(garbage: bytes) -> None:
    for form in (b"1", b"2", b"3"):
        try:
            decode_node(HEADER.replace(b"3", form) + garbage).metadata(1)
        except CorruptMetadataError:
            continue


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "00/0000/L0000"),
        (27, "00/0000/L0027"),
        (2**31 - 2, "21/4748/L3646"),
        (2**31 - 1, "000/0000/0021/4748/L3647"),
        (2147483653, "000/0000/0021/4748/L3653"),
        (2**63 - 1, "922/3372/0368/5477/L5807"),
    ],
)
def test_ledgers_are_where_bookkeeper_looks_for_them(ledger_id: int, path: str) -> None:
    assert ledger_node(ledger_id) == path


def test_the_nodes_above_a_ledger() -> None:
    assert parents("000/0000/L0027") == ["000", "000/0000"]
