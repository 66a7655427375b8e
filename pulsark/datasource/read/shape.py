"""Converts rows to the columns of a query. Runs in tasks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsark.datasource.options.errors import DataSourceError
from pulsark.datasource.read.ddl import json_scalar
from pulsark.rows import ROW_SCHEMA
from pulsark.rows.values import ValueColumn
from pulsark.rows.values.json_values import DeclaredJson
from pulsark.rows.values.losses import Losses
from pulsark.rows.values.types import arrow_type
from pulsark.schemas.definition import SchemaData
from pulsark.schemas.value_schemas import ValueSchema, ValueSchemas

if TYPE_CHECKING:
    from pulsark.datasource.admin.client import BrokerOptions
    from pulsark.datasource.read.layout import ColumnLayout

log = logging.getLogger(__name__)

Schemas = Mapping[bytes, SchemaData]
_TEXT = pc.CastOptions(pa.string(), allow_invalid_utf8=True)
_RAW = "__valueRaw"


class Shape:
    """Makes record batches of ``columns`` from those of messages, which have ``stored``."""

    def __init__(
        self,
        layout: ColumnLayout,
        columns: Sequence[str],
        schemas_of: Callable[[str], Schemas],
        *,
        json_values: bool = False,
        fail_on_new_columns: bool = False,
    ) -> None:
        """With ``fail_on_new_columns``, a schema that the columns cannot show is an error."""
        self._fails = fail_on_new_columns
        self.lost: dict[str, Counter[str]] = {}
        """Messages whose payload the columns do not show, by topic and path of the field."""
        self._layout = layout
        self._columns = columns
        self._schemas_of = schemas_of
        self._json = json_values
        self._values: dict[str, ValueColumn] = {}
        self._declared = (
            DeclaredJson(layout.payload, json_scalar)
            if json_values and layout.payload is not None
            else None
        )
        self._asked: dict[str, set[bytes]] = {}
        stored = [layout.stored[name] for name in columns if name in layout.stored]
        self._typed = len(stored) < len(columns)
        if self._typed:
            stored += ["value", "value_raw", *([] if json_values else ["schema_version"])]
        self.stored = tuple(dict.fromkeys(stored))
        types = [(name, arrow_type(layout.columns[name])) for name in columns]
        self._schema = pa.schema(
            [
                (name, ROW_SCHEMA.field("properties").type if pa.types.is_map(kind) else kind)
                if name in layout.stored
                else (name, kind)
                for name, kind in types
            ]
        )
        self._same = self._schema == pa.schema([ROW_SCHEMA.field(name) for name in self.stored])

    def apply(self, batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
        """The same rows. Text that is not UTF-8 stays as it is, as in Spark's own casts."""
        if self._same:
            return batch
        values: Any = None
        raw = None
        if self._typed:
            values, raw = self._payloads(batch, topic)
        arrays = []
        for name, kind in zip(self._columns, self._schema.types, strict=True):
            source = self._layout.stored.get(name)
            if source is not None:
                column = batch.column(source)
                arrays.append(column if column.type == kind else pc.cast(column, options=_TEXT))
            elif name == _RAW:
                arrays.append(raw)
            elif pa.types.is_struct(values.type) and values.type.get_field_index(name) >= 0:
                arrays.append(pc.struct_field(values, name))
            else:
                arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _payloads(self, batch: pa.RecordBatch, topic: str) -> tuple[pa.Array, pa.Array]:
        """Return the values, and the payloads that they do not show as a whole."""
        payloads = batch.column("value")
        lost = Losses(len(payloads))
        if self._declared is not None:
            values = self._declared.decode(payloads, lost)
        elif self._layout.payload == "binary":
            values = payloads
        else:
            values = self._decoded(payloads, batch.column("schema_version"), topic, lost)
        raw = batch.column("value_raw")
        if not lost.rows.any():
            return values, raw
        self._report(topic, lost)
        left = pc.if_else(pa.array(lost.rows), payloads, pa.scalar(None, pa.binary()))
        return values, pc.coalesce(raw, left)

    def _report(self, topic: str, lost: Losses) -> None:
        counts = self.lost.setdefault(topic, Counter())
        for path, count in lost.counts.items():
            counts[path] += count
            if (topic, path) not in _warned and len(_warned) < _WARNINGS_MAX:
                _warned.add((topic, path))
                log.warning("%s; column %s has their payloads", lost_text(topic, path), _RAW)

    def _decoded(
        self, payloads: pa.Array, versions: pa.Array, topic: str, lost: Losses
    ) -> pa.Array:
        carried = set(pc.unique(versions).to_pylist()) - {None}
        asked = self._asked.setdefault(topic, set())
        if topic not in self._values or not carried <= asked:
            # A version that is not in the newest list either was deleted.
            known = self._schemas_of(topic)
            asked.update(carried, known)
            if self._fails:
                self._layout.check_current(self._columns, topic, known)
            found = (ValueSchema(version, schema) for version, schema in known.items())
            assert self._layout.payload is not None
            self._values[topic] = ValueColumn(ValueSchemas(self._layout.payload, tuple(found)))
        return self._values[topic].decode(payloads, versions, lost)


_warned: set[tuple[str, str]] = set()
"""Topics and paths that this process has warned of."""

_WARNINGS_MAX = 10_000


def lost_text(topic: str, path: str) -> str:
    """Return what a log says of messages with values that do not fit."""
    where = f"field {path}" if path else "the value as a whole"
    return f"{topic}: some messages have values that do not fit the columns ({where})"


def schemas_of(options: BrokerOptions) -> Callable[[str], Schemas]:
    """Asks the broker for a topic's schemas; none of a topic that is gone."""
    from pulsark.datasource.admin.client import admin_of
    from pulsark.wire.topic_name import TopicName

    def ask(topic: str) -> Schemas:
        try:
            with admin_of(options, known=True) as admin:
                return admin.schemas.versions(TopicName.parse(topic).base)
        except DataSourceError as error:
            log.warning("%s", error)
            raise

    return ask
