"""Event times that no calendar of Python has."""

from __future__ import annotations

import pytest

from pulsark.rows import RowBuilder, entries_of
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.entry import build_entry

LAST = 253_402_300_799_999
"""The last millisecond of the year 9999."""


@pytest.mark.parametrize("event_time", [1, LAST, LAST + 1, 2**62, 2**64 - 1])
def test_a_time_beyond_the_year_9999_is_null_and_comes_back(event_time: int) -> None:
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, event_time=event_time
    )
    entry = build_entry(head, b"x")
    build = RowBuilder.for_table(0)
    build.add(5, 0, entry)
    rows = build.finish()
    (shown,) = rows["event_time"].to_pylist()
    assert (shown is None) == (event_time > LAST)
    assert [found for _, found in entries_of(rows)] == [entry]
