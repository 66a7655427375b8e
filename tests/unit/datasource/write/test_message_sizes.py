"""A bulk publish has no message that clients could not receive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsark.datasource.options.errors import DataSourceError
from pulsark.datasource.write.outgoing import columns_of
from pulsark.datasource.write.topic_writers import Batch, _TopicWriter
from pulsark.datasource.write.typed_values import TopicSchema, TypedValues, ValueForm
from pulsark.datasource.write.write_options import WriteOptions
from pulsark.schemas.definition import SchemaType
from pulsark.schemas.value_schemas import ValueSchemas
from pulsark.wire.topic_name import TopicName

LIMIT = 10_000
TOPIC = TopicName.parse("orders")


def writer(
    directory: Path, columns: list[str], values: TypedValues | None = None, **raw: str
) -> _TopicWriter:
    staging: dict[str, Any] = {
        "topicId": "x",
        "partitions": 0,
        "directories": [str(directory)],
        "directoriesNeeded": 1,
        "values": json.loads(ValueSchemas().encode()),
        "filesMax": 10,
        "entryBytesMax": LIMIT,
        "timeMs": 1,
    }
    options = WriteOptions.parse({"topic": "orders", **raw})
    batch = Batch("w", 0, 0, False)
    return _TopicWriter(str(TOPIC), staging, options, columns_of(columns), values, batch)


def check_added(made: Any, rows: pa.RecordBatch, fits: bool, error: str) -> None:
    """Add rows: they are written if they fit, and an error otherwise."""
    if fits:
        made.add(rows)
        assert made.finish().ledgers
        return
    with pytest.raises(DataSourceError, match=error):
        made.add(rows)


@pytest.mark.parametrize(
    ("row", "fits"),
    [
        ({"value": b"v" * (LIMIT - 200)}, True),
        ({"value": b"v" * (LIMIT + 1)}, False),
        ({"value": b"v" * (LIMIT - 200), "key": "k" * 101}, False),
        ({"value": b"v" * (LIMIT - 200), "properties": [("p", "x" * 200)]}, False),
    ],
)
def test_a_row_that_is_too_large_is_an_error(
    tmp_path: Path, row: dict[str, Any], fits: bool
) -> None:
    texts = pa.map_(pa.string(), pa.string())
    kinds = {"value": pa.binary(), "key": pa.string(), "properties": texts}
    rows = pa.RecordBatch.from_pydict(
        {name: pa.array([None, row.get(name)], kind) for name, kind in kinds.items()}
    )
    made = writer(tmp_path, list(kinds))
    check_added(made, rows, fits, rf"the 2\. of its batch.*orders takes {LIMIT} at mo")


@pytest.mark.parametrize(("text", "fits"), [("\x01" * 1600, True), ("\x01" * 1700, False)])
def test_what_grows_when_it_is_encoded_is_measured_then(
    tmp_path: Path, text: str, fits: bool
) -> None:
    fields = [{"name": "a", "type": "string", "nullable": True, "metadata": {}}]
    form = ValueForm(SchemaType.JSON, {"type": "struct", "fields": fields}, "value")
    values = TypedValues(form, TopicSchema(form.schema_for(TOPIC, None), bytes(8)))
    rows = pa.RecordBatch.from_pydict({"value": pa.array([{"a": "small"}, {"a": text}])})
    made = writer(tmp_path, ["value"], values, valueFormat="json")
    check_added(made, rows, fits, r"the 2\. of its batch")


def test_batches_stay_below_the_limit(tmp_path: Path) -> None:
    made = writer(tmp_path, ["value"], batchingMaxBytes="64m")
    made.add(pa.RecordBatch.from_pydict({"value": pa.array([b"v" * 3_000] * 10)}))
    (ledger,) = made.finish().ledgers
    assert ledger["files"][-1]["entries"][1] == 9
