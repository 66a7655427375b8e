"""The column ``value`` of a table's file: typed, and beside it what types do not tell.

A row has its value in the column's type wherever its schema can read it. Whenever the payload
cannot be made again from that, byte for byte, ``value_raw`` has it as it was sent. This is tried
out for each message before it is written; so whatever a codec makes of a payload, nothing is lost.

A file says in its metadata with which schemas its rows were made, so that reading it needs
nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsark.errors import CorruptEntryError
from pulsark.schemas.columns import ColumnType
from pulsark.schemas.definition import SchemaData, SchemaError, SchemaType
from pulsark.storage.rows.values.codec import Codec, codec_of, form_of, learn
from pulsark.storage.rows.values.types import arrow_type, fit, spread


class ValueColumn:
    """Values of one file. ``schemas`` are those of the topic by the version in messages."""

    def __init__(
        self,
        kind: ColumnType,
        schemas: Mapping[bytes, SchemaData],
        forms: Mapping[bytes, Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.kind = kind
        self.type = arrow_type(kind)
        self._schemas = schemas
        self._forms = forms or {}
        self._codecs: dict[bytes, Codec] = {}

    def fresh(self) -> ValueColumn:
        """For another file: nothing learned yet."""
        return ValueColumn(self.kind, self._schemas)

    def split(self, payloads: pa.Array, versions: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Values, and where they do not tell all of a payload, the payload; of each row.

        ``versions`` are the schema versions that the rows carry.
        """
        values = self._by_version(payloads, versions, self.type, self._decoded)
        again = self._by_version(values, versions, pa.binary(), self._encoded)
        same = pc.fill_null(pc.equal(again, payloads), False)
        return values, pc.if_else(same, pa.scalar(None, pa.binary()), payloads)

    def join(self, values: pa.Array, raw: pa.Array, versions: pa.Array) -> pa.Array:
        """The inverse of ``split``: the payloads, null for null."""
        typed = pc.if_else(pc.is_null(raw), values, pa.scalar(None, values.type))
        return pc.coalesce(raw, self._by_version(typed, versions, pa.binary(), self._encoded))

    def to_metadata(self) -> bytes:
        """What a file has to say of its values."""
        schemas = [
            {
                "version": version.hex(),
                "type": schema.type.name,
                "data": base64.b64encode(schema.data).decode(),
                "properties": dict(schema.properties),
                "form": form_of(codec),
            }
            for version, codec in self._codecs.items()
            for schema in [self._schemas[version]]
        ]
        return json.dumps({"type": self.kind, "schemas": schemas}).encode()

    @classmethod
    def from_metadata(cls, metadata: bytes) -> ValueColumn:
        """The inverse. Raises ``CorruptEntryError``."""
        try:
            document = json.loads(metadata)
            schemas, forms = {}, {}
            for each in document["schemas"]:
                version = bytes.fromhex(each["version"])
                schemas[version] = SchemaData(
                    SchemaType[each["type"]],
                    base64.b64decode(each["data"]),
                    dict(each["properties"]),
                )
                forms[version] = each["form"]
            return cls(document["type"], schemas, forms)
        except (KeyError, TypeError, ValueError, SchemaError) as e:
            raise CorruptEntryError(f"its values are described wrongly: {e!r}") from None

    def _codec(self, version: bytes | None) -> Codec | None:
        if version is None or version not in self._schemas:
            return None
        codec = self._codecs.get(version)
        if codec is None:
            codec = codec_of(self._schemas[version], self._forms.get(version))
            self._codecs[version] = codec
        return codec

    def _decoded(self, codec: Codec, payloads: pa.Array) -> pa.Array:
        learn(codec, payloads)
        return fit(codec.decode(payloads), self.type)

    def _encoded(self, codec: Codec, values: pa.Array) -> pa.Array:
        return codec.encode(fit(values, codec.type))

    def _by_version(
        self,
        column: pa.Array,
        versions: pa.Array,
        kind: pa.DataType,
        convert: Callable[[Codec, pa.Array], pa.Array],
    ) -> pa.Array:
        """A column converted with the codec of each row; null where there is none."""
        codes = versions.dictionary_encode()
        known = codes.dictionary.to_pylist()
        if len(known) == 1 and not codes.null_count:
            codec = self._codec(known[0])
            return pa.nulls(len(column), kind) if codec is None else convert(codec, column)
        numbers = pc.fill_null(codes.indices, -1).to_numpy()
        found = pa.nulls(len(column), kind)
        for number, version in enumerate(known):
            codec = self._codec(version)
            if codec is not None:
                here = numbers == number
                part = convert(codec, column.filter(pa.array(here)))
                found = pc.coalesce(found, spread(part, here))
        return found
