"""The column ``value`` of a table's file: typed, and beside it what types do not tell.

A row has a typed value if its schema can read the payload. If the value does not encode to exactly
the payload's bytes, ``value_raw`` has the payload as well. This is checked for each message before
it is written, so no codec can lose data. A payload that fails in its codec counts as unreadable;
payloads of a schema without a codec stay bytes.

A file's metadata has the schemas of its rows, so that reading it needs nothing else.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsark.errors import CorruptEntryError
from pulsark.rows.values.codec import Codec, codec_of, form_of, learn, refused
from pulsark.rows.values.losses import WHOLE, Losses
from pulsark.rows.values.types import arrow_type, fit, holds, spread, valid
from pulsark.schemas.definition import SchemaError
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas

log = logging.getLogger(__name__)

Convert = Callable[[Codec, pa.Array, Losses], pa.Array]


class ValueColumn:
    """Values of one file."""

    def __init__(self, schemas: ValueSchemas, lost: Counter[str] | None = None) -> None:
        self.type = arrow_type(schemas.kind)
        self._schemas = schemas
        self.lost: Counter[str] = Counter() if lost is None else lost
        """Messages that were split and whose values do not say everything, by path of the field."""
        self.format = schemas.format
        """The version of a file with these values."""
        self._by_version = {each.version: each for each in schemas.schemas}
        self._codecs: dict[bytes, Codec] = {}
        self._without: set[bytes] = set()
        """Versions of schemas that have no codec."""

    def fresh(self) -> ValueColumn:
        """Return a column for another file: nothing is learned yet, and losses go on."""
        return ValueColumn(self._schemas, self.lost)

    @property
    def refused(self) -> int:
        """Payloads so far that have no value because they are beyond the bounds."""
        return sum(map(refused, self._codecs.values()))

    def decode(
        self, payloads: pa.Array, versions: pa.Array, lost: Losses | None = None
    ) -> pa.Array:
        """Return values alone, null where there is none; of each row by the version it carries.

        What they do not show of a payload is ``lost``.
        """
        lost = Losses(len(payloads)) if lost is None else lost
        values = self._converted(
            payloads, versions, self.type, _tried(self._decoded, self.type), lost
        )
        unread = valid(payloads) & ~valid(values)
        if unread.any():
            lost.where(WHOLE, unread & ~lost.rows)
        return values

    def split(
        self, payloads: pa.Array, versions: pa.Array, lost: Losses | None = None
    ) -> tuple[pa.Array, pa.Array]:
        """Return values, and where they do not tell all of a payload, the payload; of each row.

        ``versions`` are the schema versions that the rows carry.
        """
        lost = Losses(len(payloads)) if lost is None else lost
        values = self.decode(payloads, versions, lost)
        self.lost.update(lost.counts)
        encoded = _tried(self._encoded, pa.binary())
        again = self._converted(values, versions, pa.binary(), encoded, Losses(len(values)))
        same = pc.fill_null(pc.equal(again, payloads), False)
        if lost.rows.any():
            # A null may be written as the lost value was: readers see the null alone.
            same = pc.and_not(same, pa.array(lost.rows))
        return values, pc.if_else(same, pa.scalar(None, pa.binary()), payloads)

    def keep(self, values: pa.Array, version: bytes) -> tuple[pa.Array, pa.Array]:
        """``split`` of values that the codec of a version has made, and that were never sent.

        A reader gets payloads that the codec makes of them. The column keeps the values alone,
        wherever it can hold all of them.
        """
        codec = self._codec(version)
        if codec is None or not values.type.equals(codec.type):
            raise ValueError("values that are not of the version's schema")
        if holds(self.type, values.type):
            return fit(values, self.type), pa.nulls(len(values), pa.binary())
        return self.split(
            codec.encode(values), pa.repeat(pa.scalar(version, pa.binary()), len(values))
        )

    def knows(self, version: bytes, values: pa.DataType) -> bool:
        """Whether ``keep`` takes values of a type."""
        codec = self._codec(version)
        return codec is not None and values.equals(codec.type)

    def join(self, values: pa.Array, raw: pa.Array, versions: pa.Array) -> pa.Array:
        """The inverse of ``split``: the payloads, null for null.

        What was encoded when it was written is now, too; anything else is an error.
        """
        typed = pc.if_else(pc.is_null(raw), values, pa.scalar(None, values.type))
        lost = Losses(len(typed))
        return pc.coalesce(raw, self._converted(typed, versions, pa.binary(), self._encoded, lost))

    def use_all(self) -> None:
        """Describe all schemas from now on: the rows come from a file that has used them."""
        for version in self._by_version:
            self._codec(version)

    def to_metadata(self) -> bytes:
        """What a file has to say of its values."""
        used = tuple(
            ValueSchema(version, self._by_version[version].schema, form_of(codec))
            for version, codec in self._codecs.items()
        )
        return ValueSchemas(self._schemas.kind, used, self.format).encode()

    @classmethod
    def from_metadata(cls, metadata: bytes) -> ValueColumn:
        """The inverse. Raises ``CorruptEntryError``."""
        try:
            return cls(ValueSchemas.decode(metadata))
        except (KeyError, TypeError, ValueError, SchemaError) as e:
            raise CorruptEntryError(f"its values are described wrongly: {e!r}") from None

    def _codec(self, version: bytes | None) -> Codec | None:
        if version is None or version not in self._by_version or version in self._without:
            return None
        codec = self._codecs.get(version)
        if codec is None:
            found = self._by_version[version]
            try:
                codec = codec_of(found.schema, found.form, self._schemas.kind)
            except Exception as e:  # noqa: BLE001 - logged; payloads are kept
                log.warning(
                    "cannot decode values with schema version %s, keeping them as they were sent:"
                    " %r",
                    version.hex(), e,
                )  # fmt: skip
                self._without.add(version)
                return None
            self._codecs[version] = codec
        return codec

    def _decoded(self, codec: Codec, payloads: pa.Array, lost: Losses) -> pa.Array:
        learn(codec, payloads)
        return fit(codec.decode(payloads, lost), self.type, lost)

    def _encoded(self, codec: Codec, values: pa.Array, _lost: Losses) -> pa.Array:
        return codec.encode(fit(values, codec.type))

    def _converted(
        self,
        column: pa.Array,
        versions: pa.Array,
        kind: pa.DataType,
        convert: Convert,
        lost: Losses,
    ) -> pa.Array:
        """A column converted with the codec of each row; null where there is none."""
        codes = versions.dictionary_encode()
        known = codes.dictionary.to_pylist()
        if len(known) == 1 and not codes.null_count:
            codec = self._codec(known[0])
            return pa.nulls(len(column), kind) if codec is None else convert(codec, column, lost)
        numbers = pc.fill_null(codes.indices, -1).to_numpy()
        found = pa.nulls(len(column), kind)
        for number, version in enumerate(known):
            codec = self._codec(version)
            if codec is not None:
                here = numbers == number
                inner = lost.within("", np.flatnonzero(here))
                part = convert(codec, column.filter(pa.array(here)), inner)
                found = pc.coalesce(found, spread(part, here))
        return found


def _tried(convert: Convert, kind: pa.DataType) -> Convert:
    """Return a conversion that gives null for each value with which another one fails."""

    def tried(codec: Codec, column: pa.Array, lost: Losses) -> pa.Array:
        own = Losses(len(column))
        try:
            found = convert(codec, column, own)
        except Exception as e:  # noqa: BLE001 - logged; payloads are kept
            if len(column) <= 1:
                log.warning("cannot decode a value, keeping it as it was sent: %r", e)
                return pa.nulls(len(column), kind)
        else:
            lost.take(own)
            return found
        middle = len(column) // 2
        first, second = np.arange(middle), np.arange(middle, len(column))
        return pa.concat_arrays(
            [
                tried(codec, column[:middle], lost.within("", first)),
                tried(codec, column[middle:], lost.within("", second)),
            ]
        )

    return tried
