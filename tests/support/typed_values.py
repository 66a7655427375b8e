"""Avro payloads, and payloads through the typed column of a table and back."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa

from pulsark.rows.values import ValueColumn

V0, V1 = (bytes(7) + bytes([n]) for n in range(2))
"""Versions of a schema, as messages carry them."""


def encoded(definition: Any, *values: Any) -> list[bytes]:
    """Values as the payloads of an Avro schema, by a library that is not ours."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(definition)))
    payloads = []
    for value in values:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, value)
        payloads.append(stream.getvalue())
    return payloads


def through(
    column: ValueColumn, payloads: Sequence[bytes | None], versions: Sequence[bytes | None]
) -> tuple[list[Any], list[bytes | None]]:
    """Values and what is kept as it was sent; asserts that all payloads come back."""
    given, carried = pa.array(payloads, pa.binary()), pa.array(versions, pa.binary())
    values, raw = column.split(given, carried)
    values.validate(full=True)
    assert values.type == column.type
    again = ValueColumn.from_metadata(column.to_metadata())
    assert again.join(values, raw, carried).to_pylist() == list(payloads)
    return values.to_pylist(), raw.to_pylist()
