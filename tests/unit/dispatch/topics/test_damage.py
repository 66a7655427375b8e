"""What is said of a damaged topic helps where it is said."""

from __future__ import annotations

import pytest

from pulsark.dispatch.topics.damage import advice
from pulsark.errors import (
    CorruptEntryError,
    CorruptMetadataError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    UnreadableTableError,
)
from pulsark.wire.topic_name import TopicName

NAME = TopicName.parse("persistent://public/default/t")


@pytest.mark.parametrize(
    "error", [CorruptEntryError, NoSuchLedgerError, NoSuchEntryError, CorruptMetadataError]
)
def test_a_broker_of_a_cluster_has_no_data_directory_for_the_doctor(
    error: type[Exception],
) -> None:
    alone = advice(NAME, error("broken"))
    assert alone is not None
    assert "pulsark doctor --data-dir" in alone
    among = advice(NAME, error("broken"), of_cluster=True)
    assert among is not None
    assert "doctor" not in among
    assert "Stop this process" not in among


def test_a_table_is_repaired_alike_and_what_may_pass_is_tried_again() -> None:
    for of_cluster in (False, True):
        told = advice(NAME, UnreadableTableError("gone"), of_cluster=of_cluster)
        assert told is not None
        assert f"pulsark tables repair {NAME}" in told
        assert advice(NAME, StorageError("away"), of_cluster=of_cluster) is None
