"""Avro's binary encoding, all messages at once.

Recursive records, and messages that the reader leaves, are read one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pulsark.rows.arrow.arrays import (
    joined,
)
from pulsark.rows.values.avro_one_by_one import AvroOneByOne
from pulsark.rows.values.avro_reader import AvroReader
from pulsark.rows.values.avro_writer import avro_pieces
from pulsark.rows.values.types import (
    arrow_type,
    spread,
    valid,
    with_nulls,
)
from pulsark.schemas.avro import (
    Array,
    AvroType,
    Map,
    Record,
    Union,
)
from pulsark.schemas.columns import of_avro


def avro_codec(avro: AvroType, definition: Any) -> AvroCodec | AvroOneByOne | None:
    """The codec of a type; ``None`` if no column can show it. ``definition`` is its JSON."""
    found = of_avro(avro)
    if found is None:
        return None
    kind = arrow_type(found)
    slow = AvroOneByOne(avro, definition, kind)
    return slow if _contains_itself(avro, (), set()) else AvroCodec(avro, slow)


def _contains_itself(avro: AvroType, inside: tuple[str, ...], known: set[str]) -> bool:
    """Whether a record is within itself; not of the ``known`` ones."""
    match avro:
        case Array(inner) | Map(inner):
            return _contains_itself(inner, inside, known)
        case Union():
            return any(_contains_itself(branch, inside, known) for branch in avro.branches)
        case Record(name=name):
            if name in inside:
                return True
            if name in known:
                return False
            types = [field.type for field in avro.fields.values()]
            found = any(_contains_itself(each, (*inside, name), known) for each in types)
            known.add(name)
            return found
    return False


class AvroCodec:
    """Values of a schema without a record in itself."""

    def __init__(self, avro: AvroType, one_by_one: AvroOneByOne) -> None:
        self._avro = avro
        self._one_by_one = one_by_one
        self.type = one_by_one.type

    def decode(self, payloads: pa.Array) -> pa.Array:
        """Null where a payload is not a value of the schema, or more than that."""
        present = valid(payloads)
        if not present.all():
            return spread(self.decode(payloads.drop_null()), present)
        if not len(payloads):
            return pa.nulls(0, self.type)
        reader = AvroReader(payloads)
        found = reader.read(self._avro, self.type, np.arange(len(payloads)))
        assert found is not None
        left = reader.left
        if not left.any():
            return with_nulls(found, reader.wrong())
        rest = self._one_by_one.decode(payloads.filter(pa.array(left)))
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
