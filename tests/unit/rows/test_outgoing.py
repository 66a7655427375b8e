"""Messages as rows of entries, whatever part of an Arrow array they come from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsark.rows.arrow.schema import STRING_MAP
from pulsark.rows.outgoing import (
    OUTGOING_SCHEMA,
    Batching,
    entry_rows,
    entry_sizes,
    message_sizes,
)
from pulsark.wire import pulsar_pb2 as pb

texts = st.text("aé", max_size=3)
times = st.none() | st.integers(0, 10**12).map(lambda ms: ms * 1000)
properties = st.none() | st.lists(st.tuples(texts, st.none() | texts), max_size=2)
messages = st.fixed_dictionaries(
    {
        "key": st.none() | texts,
        "key_base64": st.none() | st.booleans(),
        "ordering_key": st.none() | st.binary(max_size=2),
        "value": st.none() | st.binary(max_size=4),
        "properties": properties,
        "event_time": times,
        "deliver_at_time": times,
    }
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as an array of their own, which begins at 0 and has nothing behind its nulls."""
    columns = [pa.array([row[f.name] for row in rows], f.type) for f in OUTGOING_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=OUTGOING_SCHEMA)


def masked(batch: pa.RecordBatch, hidden: list[bool]) -> pa.RecordBatch:
    """The same with null properties that have the old ones behind them."""
    column = batch.column("properties")
    valid = column.is_valid().to_pylist()
    mask = pa.array([h or not v for h, v in zip(hidden, valid, strict=True)])
    found = pa.MapArray.from_arrays(
        column.offsets, column.keys, column.items, STRING_MAP, mask=mask
    )
    place = OUTGOING_SCHEMA.get_field_index("properties")
    return batch.set_column(place, OUTGOING_SCHEMA.field(place), found)


def sent(batch: pa.RecordBatch, batching: Batching) -> tuple[list[Any], list[Any]]:
    """The rows, and the metadata of their entries."""
    found = entry_rows(batch, batching, 5, 100, 1_700_000_000_000)
    found.rows.validate(full=True)
    rows = found.rows.to_pylist()
    metas = [pb.MessageMetadata.FromString(row["entry_meta"]) for row in rows if row["entry_meta"]]
    assert found.entries == len(metas) == len(found.starts) - 1
    return rows, metas


@given(
    st.lists(messages, min_size=1, max_size=8),
    st.data(),
    st.builds(
        lambda number, size: Batching("p", number, size),
        st.integers(1, 4),
        st.integers(30, 200),
    ),
)
def test_a_part_of_an_array_gives_what_its_rows_give(
    rows: list[dict[str, Any]], data: st.DataObject, batching: Batching
) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - start))
    hidden = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    shown = [
        {**row, "properties": None if hide else row["properties"]}
        for row, hide in zip(rows, hidden, strict=True)
    ][start : start + count]
    part, own = masked(batch_of(rows), hidden).slice(start, count), batch_of(shown)
    assert sent(part, batching) == sent(own, batching)
    assert message_sizes(part).tolist() == message_sizes(own).tolist()
    assert entry_sizes(part).tolist() == entry_sizes(own).tolist()


@given(st.lists(messages, min_size=1, max_size=8), st.integers(1, 4), st.integers(30, 200))
def test_entries_have_the_messages_in_order_within_their_limits(
    rows: list[dict[str, Any]], most: int, size: int
) -> None:
    batch = batch_of(rows)
    found, metas = sent(batch, Batching("p", most, size))
    assert [row["value"] for row in found] == [row["value"] for row in rows]
    assert [row["sequence_id"] for row in found] == list(range(100, 100 + len(rows)))
    assert [[(name, value or "") for name, value in row["properties"] or ()] for row in rows] == [
        row["properties"] or [] for row in found
    ]
    sizes, start = message_sizes(batch).tolist(), 0
    for number, meta in enumerate(metas):
        mine = [place for place, row in enumerate(found) if row["entry_id"] == 5 + number]
        assert mine == list(range(start, start + len(mine)))
        start += len(mine)
        assert meta.sequence_id == 100 + mine[0]
        assert len(mine) <= most
        assert len(mine) == 1 or sum(sizes[place] for place in mine) <= size
        delayed = [rows[place]["deliver_at_time"] for place in mine]
        if delayed != [None] * len(mine):
            assert len(mine) == 1
            assert meta.deliver_at_time == delayed[0] // 1000
        else:
            assert meta.num_messages_in_batch == len(mine)
            assert [found[place]["batch_index"] for place in mine] == list(range(len(mine)))
            following = mine[-1] + 1
            if following < len(rows) and rows[following]["deliver_at_time"] is None:
                full = sum(sizes[place] for place in [*mine, following]) > size
                assert len(mine) == most or full
    assert start == len(rows)
