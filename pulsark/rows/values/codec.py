"""The codec of a schema: payloads as values, and values as the payloads that they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.rows.arrow.arrays import Ints, cells_of, slices
from pulsark.rows.values.avro import avro_codec
from pulsark.rows.values.bounds import Bounds
from pulsark.rows.values.json_form import JsonForm
from pulsark.rows.values.json_values import JsonCodec
from pulsark.rows.values.losses import WHOLE, Losses
from pulsark.rows.values.primitives import (
    BytesCodec,
    as_cells,
    primitive_codec,
)
from pulsark.rows.values.protobuf import ProtobufCodec
from pulsark.rows.values.types import arrow_type, spread, valid, with_nulls
from pulsark.schemas.avro import Record
from pulsark.schemas.column_types import BINARY, ColumnType, types_of
from pulsark.schemas.columns import as_held, avro_of, pair_of, value_type
from pulsark.schemas.definition import SchemaData, SchemaType
from pulsark.schemas.protobuf import protobuf_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Codec(Protocol):
    """Columns of payloads and of values; null stands for null in both directions."""

    type: pa.DataType

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload is none. What they do not say of it is ``lost``."""

    def encode(self, values: pa.Array) -> pa.Array:
        """Payloads; of a value that was decoded not always the same again."""


def arrow_type_of(schema: SchemaData) -> pa.DataType:
    """The type of a column with a schema's values; binary if it can show no more than bytes."""
    return arrow_type(value_type(schema))


def decode_values(schema: SchemaData, payloads: pa.Array) -> pa.Array:
    """A column of payloads (binary) as values, with ``arrow_type_of``.

    Null where a payload is null, or no value of the schema.
    """
    return codec_of(schema).decode(payloads, Losses(len(payloads)))


def codec_of(
    schema: SchemaData,
    form: Mapping[str, Any] | None = None,
    column: ColumnType | None = None,
) -> Codec:
    """The codec of a schema; ``form`` is what ``form_of`` gave, to encode in that form.

    ``column`` has the type in which the values are to be held, if that is known.
    """
    if value_type(schema) == BINARY:
        return BytesCodec()
    avro = avro_of(schema)
    if avro is not None:
        if schema.type is SchemaType.JSON:
            assert isinstance(avro, Record)
            return JsonCodec(avro, None if form is None else JsonForm.from_json(form))
        held = avro if column is None else as_held(avro, column)
        return avro_codec(held) or BytesCodec()
    message = protobuf_of(schema)
    if message is not None:
        return ProtobufCodec(message, None if form is None else bool(form["packed"]))
    pair = pair_of(schema)
    if isinstance(pair, SchemaData):
        return codec_of(pair, form, column)
    if pair is not None:
        forms = form or {}
        held_as = types_of(column or BINARY)
        key, value = (
            codec_of(each, forms.get(name), held_as.get(name))
            for name, each in zip(("key", "value"), pair, strict=True)
        )
        return PairCodec(key, value)
    return primitive_codec(schema)


def learn(codec: Codec, payloads: pa.Array) -> None:
    """Let a codec choose its form from the first payloads, if it has forms."""
    if isinstance(codec, JsonCodec | PairCodec | ProtobufCodec):
        codec.learn(payloads)


def form_of(codec: Codec) -> dict[str, Any] | None:
    """What another codec of the same schema needs in order to encode equally."""
    if isinstance(codec, JsonCodec):
        return None if codec.form is None else codec.form.to_json()
    if isinstance(codec, ProtobufCodec):
        return None if codec.packed is None else {"packed": codec.packed}
    if isinstance(codec, PairCodec):
        return {"key": form_of(codec.key), "value": form_of(codec.value)}
    return None


def refused(codec: Codec) -> int:
    """Return how many payloads a codec has refused because they were beyond its bounds."""
    if isinstance(codec, PairCodec):
        return refused(codec.key) + refused(codec.value)
    bounds = getattr(codec, "bounds", None)
    return bounds.refused if isinstance(bounds, Bounds) else 0


class PairCodec:
    """KEY_VALUE with both in the payload: each a length in 4 bytes, -1 for null, and bytes."""

    def __init__(self, key: Codec, value: Codec) -> None:
        self.key = key
        self.value = value
        self.type = pa.struct([("key", key.type), ("value", value.type)])

    def learn(self, payloads: pa.Array) -> None:
        """Let both learn from their part."""
        key, value, _ = _parts(payloads.drop_null())
        learn(self.key, key)
        learn(self.value, value)

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return pairs, null where a payload is none."""
        present = valid(payloads)
        if not present.all():
            inner = lost.within("", np.flatnonzero(present))
            return spread(self.decode(payloads.drop_null(), inner), present)
        key, value, wrong = _parts(payloads)
        lost.where(WHOLE, wrong)
        if wrong.any():
            key, value = with_nulls(key, wrong), with_nulls(value, wrong)
        columns = [
            self.key.decode(key, lost.within("key")),
            self.value.decode(value, lost.within("value")),
        ]
        return with_nulls(pa.StructArray.from_arrays(columns, fields=list(self.type)), wrong)

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads; null for null."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        key, value = self.key.encode(values.field(0)), self.value.encode(values.field(1))
        return pc.binary_join_element_wise(
            _size(key), key, _size(value), value, pa.scalar(b"", pa.binary()),
            null_handling="replace", null_replacement=b"",
        )  # fmt: skip


def _size(part: pa.Array) -> pa.Array:
    sizes = pc.fill_null(pc.binary_length(part), -1).to_numpy().astype(">i4")
    return cells_of(as_cells(sizes))


def _parts(payloads: pa.Array) -> tuple[pa.Array, pa.Array, Any]:
    """Keys and values of pairs, and where there are none."""
    count = len(payloads)
    if not count:
        return payloads, payloads, np.zeros(0, np.bool_)
    offsets = np.frombuffer(payloads.buffers()[1], np.int32)[payloads.offset :][: count + 1]
    held = payloads.buffers()[2]
    raw = (held.to_pybytes() if held is not None else b"") + bytes(8)
    data = np.frombuffer(raw, np.uint8)
    ends = offsets[1:].astype(np.int64)
    position = offsets[:-1].astype(np.int64)
    wrong = np.zeros(count, np.bool_)
    parts = []
    for _ in range(2):
        wrong |= position + 4 > ends
        cells = np.ascontiguousarray(
            data[np.minimum(position, len(data) - 4)[:, None] + np.arange(4)]
        )
        sizes: Ints = cells.view(">i4")[:, 0].astype(np.int64)
        start = np.minimum(position + 4, ends)
        end = start + np.maximum(sizes, 0)
        wrong |= (end > ends) | (sizes < -1)
        end = np.minimum(end, ends)
        found = slices(pa.py_buffer(raw), start, end)
        parts.append(with_nulls(found, sizes < 0))
        position = end
    return parts[0], parts[1], wrong | (position != ends)
