"""Avro's binary encoding, all messages at once.

Recursive records, and messages that the reader leaves, are read one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pulsark.limits import VALUE_DEPTH_MAX
from pulsark.rows.arrow.arrays import (
    joined,
)
from pulsark.rows.values.avro_one_by_one import AvroOneByOne
from pulsark.rows.values.avro_reader import AvroReader
from pulsark.rows.values.avro_writer import avro_pieces
from pulsark.rows.values.bounds import AvroShape
from pulsark.rows.values.types import (
    arrow_type,
    spread,
    valid,
    with_nulls,
)
from pulsark.schemas.columns import of_avro

if TYPE_CHECKING:
    from pulsark.rows.values.losses import Losses
    from pulsark.schemas.avro import (
        AvroType,
    )


def avro_codec(avro: AvroType) -> AvroCodec | AvroOneByOne | None:
    """Return the codec of a type, or None if no column can show it."""
    found = of_avro(avro)
    if found is None:
        return None
    shape = AvroShape(avro)
    slow = AvroOneByOne(avro, arrow_type(found), shape)
    one_by_one = shape.is_recursive or shape.depth > VALUE_DEPTH_MAX
    return slow if one_by_one else AvroCodec(avro, slow, shape)


class AvroCodec:
    """Values of a schema without a record in itself."""

    def __init__(self, avro: AvroType, one_by_one: AvroOneByOne, shape: AvroShape) -> None:
        self._avro = avro
        self._shape = shape
        self.bounds = shape.bounds
        self._one_by_one = one_by_one
        self.type = one_by_one.type

    def decode(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        """Return values, null where a payload is not a value of the schema, or more than that."""
        present = valid(payloads)
        if not present.all():
            inner = lost.within("", np.flatnonzero(present))
            return spread(self.decode(payloads.drop_null(), inner), present)
        return self.bounds.decoded(payloads, self._decoded, lost)

    def _decoded(self, payloads: pa.Array, lost: Losses) -> pa.Array:
        if not len(payloads):
            return pa.nulls(0, self.type)
        reader = AvroReader(payloads, self._shape)
        found = reader.read(self._avro, self.type, np.arange(len(payloads)))
        assert found is not None
        reader.report(lost)
        left = reader.left
        if not left.any():
            return with_nulls(found, reader.wrong())
        numbers = np.flatnonzero(left)
        rest = self._one_by_one.decoded(payloads.take(pa.array(numbers)), lost.within("", numbers))
        places = np.arange(len(payloads))
        places[left] = len(payloads) + np.arange(len(rest))
        mask = reader.wrong() & ~left
        return pa.concat_arrays([found, rest]).take(pa.array(places, mask=mask))

    def encode(self, values: pa.Array) -> pa.Array:
        """The payloads; null for null, and where a field without a column may have a value."""
        present = valid(values)
        if not present.all():
            return spread(self.encode(values.drop_null()), present)
        pieces = avro_pieces(self._avro, values)
        if pieces is None:
            return pa.nulls(len(values), pa.binary())
        return joined(pieces, len(values))
