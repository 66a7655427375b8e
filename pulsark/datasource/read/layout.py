"""The columns that a query can have: of a message, or of its payload's fields.

``raw`` and ``string`` give the columns of ``columns``. ``auto`` and ``json`` give the payload's
fields, or ``value`` for one that has none, followed by the message's own columns, under names that
no field has.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.datasource.options.columns import COLUMNS, PAYLOAD_META, unknown_column
from pulsark.datasource.options.errors import OptionError, SchemaChangedError
from pulsark.schemas.column_types import BINARY, ColumnType, types_of, widened
from pulsark.schemas.columns import type_of_versions, value_type
from pulsark.schemas.definition import SchemaData

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from pulsark.datasource.options.options import Options

SchemasOf = Callable[[], Mapping[str, Mapping[bytes, SchemaData]]]
"""The schemas of each topic of a query, by the version that messages carry, the oldest first."""

_DELTA_NAMES = {"int": "integer", "bigint": "long"}


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """``columns`` by name: their type, as Delta and Spark's JSON name it. In order.

    ``stored`` says of which column of a message one is a copy; those of the payload are none.
    ``payload`` is the type of the payload's value, if it is read.
    """

    columns: Mapping[str, ColumnType]
    stored: Mapping[str, str]
    payload: ColumnType | None = None

    def schema(self, names: Iterable[str] | None = None) -> StructType:
        """The schema of the columns named, all for ``None``; ``OptionError``."""
        from pyspark.sql.types import StructField, StructType

        wanted = list(self.columns if names is None else names)
        for name in wanted:
            if name not in self.columns:
                raise OptionError(f"option 'columns': {unknown_column(name, self.columns)}")
        return StructType([StructField(name, spark_type(self.columns[name])) for name in wanted])

    def check(self, schema: StructType) -> None:
        """``OptionError`` unless a schema that the user gave is a subset of the columns."""
        for field in schema.fields:
            if field.name not in self.columns:
                raise OptionError(f"schema: {unknown_column(field.name, self.columns)}")
            expected = spark_type(self.columns[field.name])
            if field.dataType != expected:
                raise OptionError(
                    f"schema: column '{field.name}' is {expected.simpleString()}, "
                    f"not {field.dataType.simpleString()}"
                )
            if not field.nullable:
                raise OptionError(f"schema: column '{field.name}' must be nullable")

    def check_current(
        self, names: Collection[str], topic: str, schemas: Mapping[bytes, SchemaData]
    ) -> None:
        """Raise ``SchemaChangedError`` if the topic's schema has grown beyond the columns named.

        If they are all columns, a column more counts as well. Payloads as bytes show everything.
        """
        if self.payload is None or self.payload == BINARY:
            return
        now = self.payload
        for schema in schemas.values():
            now = widened(now, value_type(schema))
        have, found = types_of(self.payload), types_of(now)
        is_whole = set(names) >= set(self.columns)
        wanted = found if is_whole else {n: found[n] for n in names if n in found}
        changed = [name for name, kind in wanted.items() if have.get(name) != kind]
        if not found and now != self.payload:
            changed = ["value"]
        if changed:
            raise SchemaChangedError(
                f"{topic}: a newer version of the schema adds or widens {', '.join(changed[:20])}, "
                "and the DataFrame was loaded without. Call load() again (or make the view again) "
                "to read them as columns, or set option schemaEvolutionMode to ignore: such "
                "messages have their payload in __valueRaw then"
            )

    @property
    def simple_types(self) -> dict[str, str]:
        """The columns with types that are a word."""
        return {name: kind for name, kind in self.columns.items() if isinstance(kind, str)}


def layout_of(options: Options, schemas_of: SchemasOf) -> ColumnLayout:
    """The columns of a query; asks for schemas only where they count. ``OptionError``."""
    if options.value_format == "json":
        return _of_payload(options, _declared(options))
    if options.value_format == "auto":
        return _of_payload(options, _common(schemas_of(), strict=options.fail_on_new_columns))
    columns: dict[str, ColumnType] = {each.name: _type(each.type) for each in COLUMNS}
    if options.value_format == "string":
        columns["value"] = "string"
    if not options.include_properties:
        del columns["properties"]
    return ColumnLayout(columns, {name: name for name in columns})


def spark_type(kind: ColumnType) -> DataType:
    """A column's type in Spark."""
    from pyspark.sql.types import _parse_datatype_json_value

    return _parse_datatype_json_value(kind)


def _of_payload(options: Options, payload: ColumnType) -> ColumnLayout:
    fields = types_of(payload)
    columns: dict[str, ColumnType] = dict(fields) or {"value": payload}
    stored = {}
    types = {each.name: _type(each.type) for each in COLUMNS}
    for name, source in PAYLOAD_META.items():
        if source == "properties" and not options.include_properties:
            continue
        if name in columns:
            raise OptionError(
                f"option 'valueFormat': the payload has a field {name}, which is the name of "
                "a column; read it with valueFormat raw"
            )
        columns[name] = types[source]
        if source != "value_raw":
            stored[name] = source
    return ColumnLayout(columns, stored, payload)


def _common(schemas: Mapping[str, Mapping[bytes, SchemaData]], *, strict: bool) -> ColumnType:
    """Return the type of the payloads of all topics; ``OptionError`` if they differ and ``strict``.

    Else it is that of most topics: one that joins a pattern takes no columns from the others.
    """
    found: dict[str, ColumnType] = {
        topic: type_of_versions(versions.values()) for topic, versions in schemas.items()
    }
    if not found:
        return BINARY
    kinds = list(found.values())
    if strict and kinds.count(kinds[0]) < len(kinds):
        first, other = next(
            (first, other)
            for first, other in itertools.pairwise(found)
            if found[first] != found[other]
        )
        raise OptionError(
            f"option 'valueFormat': {first} and {other} have different schemas. Read them one by "
            "one, or with valueFormat raw, or set schemaEvolutionMode to ignore: then the columns "
            "are those of most topics, and __valueRaw has what does not fit"
        )
    most = Counter(json.dumps(kind, sort_keys=True) for kind in kinds).most_common(1)[0][0]
    return next(kind for kind in kinds if json.dumps(kind, sort_keys=True) == most)


def _declared(options: Options) -> ColumnType:
    from pulsark.datasource.read.ddl import parse_ddl

    assert options.value_schema is not None
    try:
        return parse_ddl(options.value_schema)
    except ValueError as error:
        raise OptionError(f"option 'valueSchema': {error}") from None


def _type(ddl: str) -> ColumnType:
    if ddl.startswith("map"):
        return {
            "type": "map",
            "keyType": "string",
            "valueType": "string",
            "valueContainsNull": True,
        }
    return _DELTA_NAMES.get(ddl, ddl)
