"""Frames put together by hand are those that protobuf makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsark.wire.frames import message_head, send_receipt
from pulsark.wire.successive_frames import MessageHeads, send_receipts

ids = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1), st.sampled_from([127, 128, 16383]))


@given(ids, ids, ids, st.lists(ids, max_size=6), ids, st.integers(0, 300))
def test_receipts(
    producer_id: int, ledger_id: int, first: int, singles: list[int], start: int, count: int
) -> None:
    sequence_ids = [*singles, *range(start, start + count)]
    expected = [
        send_receipt(producer_id, sequence_id, None, ledger_id, first + i)
        for i, sequence_id in enumerate(sequence_ids)
    ]
    assert send_receipts(producer_id, ledger_id, first, sequence_ids) == b"".join(expected)


@given(
    ids,
    st.sampled_from([-1, 0, 127, 128, 20_000]),
    st.lists(
        st.tuples(ids, ids, st.integers(0, 150), st.none() | ids, st.integers(0, 5 << 20)),
        max_size=5,
    ),
)
def test_heads_of_messages(
    consumer_id: int, partition: int, runs: list[tuple[int, int, int, int | None, int]]
) -> None:
    heads = MessageHeads(consumer_id, partition)
    for ledger_id, first, count, epoch, size in runs:
        for entry_id in range(first, first + count):
            expected = message_head(
                consumer_id, ledger_id, entry_id, partition, 0, None, epoch, size
            )
            assert heads.head(ledger_id, entry_id, epoch, size) == expected
