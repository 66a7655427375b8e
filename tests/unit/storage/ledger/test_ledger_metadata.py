"""JSON of ledgers and managed ledgers: nothing is lost, nothing unknown is guessed at."""

from __future__ import annotations

import json

import pytest

from pulsark.errors import MetadataError
from pulsark.storage.ledger.metadata import (
    Ensemble,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    decode_ledger_metadata,
)
from pulsark.storage.managed_ledger.ledger_list import LedgerInfo
from pulsark.storage.managed_ledger.ledger_runs import RunLine
from pulsark.storage.managed_ledger.record import ManagedLedgerRecord, TopicState, decode_record
from pulsark.wire.position import Position

METADATA = LedgerMetadata(
    7,
    LedgerConfig(3, 2, 1, reserve=True, owner="/managed-ledgers/t/n/persistent/é"),
    LedgerState.OPEN,
    (Ensemble(0, 0, ("a", "b", "c")), Ensemble(10, 999, ("a", "d", "c"))),
    1_700_000_000_000,
)
RECORD = ManagedLedgerRecord(
    "0" * 32,
    5,
    TopicState.TERMINATED,
    (LedgerInfo(3, 10, 1000, 77), LedgerInfo(9, 0, 0, 88, open=True)),
    Position(2, 4),
    (1, 2),
    {"k": "v", "ключ": ""},
    folded=(RunLine(1, 1, 1, settled=True), RunLine(2, 2, 1, settled=False)),
)


@pytest.mark.parametrize("metadata", [METADATA, METADATA.closed(12, 4711)])
def test_ledger_metadata_comes_back(metadata: LedgerMetadata) -> None:
    assert decode_ledger_metadata(7, metadata.encode()) == metadata


def test_a_record_comes_back() -> None:
    assert decode_record("/r", RECORD.encode()) == RECORD
    empty = ManagedLedgerRecord("x", 0)
    assert decode_record("/r", empty.encode()) == empty
    assert json.loads(empty.encode())["version"] == 1, "earlier releases can read it"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2),
        ("version", None),
        ("ledgerId", 8),
        ("state", "HALF_OPEN"),
        ("ensembles", []),
        ("ensembles", [{"firstEntryId": 1, "length": 0, "bookies": ["a", "b", "c"]}]),
        ("ensembles", [{"firstEntryId": 0, "length": 0, "bookies": ["a"]}]),
        ("ackQuorum", 9),
        ("lastEntryId", "many"),
    ],
)
def test_ledger_metadata_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    document = json.loads(METADATA.encode())
    document[key] = value
    with pytest.raises(MetadataError, match="ledger 7"):
        decode_ledger_metadata(7, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 3),
        ("state", "LOST"),
        ("ledgers", [[2, 1, 1, 1], [1, 1, 1, 1]]),
        ("ledgers", [[2]]),
        ("trimmed", [1]),
        ("properties", None),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(key: str, value: object) -> None:
    document = json.loads(RECORD.encode())
    document[key] = value
    with pytest.raises(MetadataError, match="/r"):
        decode_record("/r", json.dumps(document).encode())


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"{}", b"\xff", b"null"])
def test_garbage_is_refused(value: bytes) -> None:
    with pytest.raises(MetadataError):
        decode_ledger_metadata(7, value)
    with pytest.raises(MetadataError):
        decode_record("/r", value)


def test_quorums_that_cannot_be_met_are_refused() -> None:
    for ensemble, write, ack in [(1, 2, 1), (2, 1, 2), (0, 0, 0), (3, 3, 0)]:
        with pytest.raises(ValueError):
            LedgerConfig(ensemble, write, ack)


def test_entries_are_striped_over_the_ensemble_of_their_time() -> None:
    def holders(entry_id: int) -> list[str]:
        ensemble, _ = METADATA.ensemble_at(entry_id)
        return METADATA.holders(ensemble, entry_id)

    assert [holders(e) for e in (0, 1, 2, 3)] == [["a", "b"], ["b", "c"], ["c", "a"], ["a", "b"]]
    assert holders(10) == ["d", "c"]
    assert METADATA.ensemble_at(9)[1] == 9
    assert METADATA.ensemble_at(10)[1] > 10**15
    assert METADATA.bookie_ids() == ["a", "b", "c", "d"]
