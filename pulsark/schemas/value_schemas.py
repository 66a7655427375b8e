"""The schemas by which a table's values were encoded: what a table's file says of its column.

It is JSON, the same in the metadata of a file and in the order to write one.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.schemas.column_types import BINARY, ColumnType, in_tables, merged
from pulsark.schemas.definition import SchemaData, SchemaType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A version of the topic's schema."""

    version: bytes
    """As messages carry it."""
    schema: SchemaData
    form: Mapping[str, Any] | None = None
    """How clients write its values, where that may differ."""


@dataclass(frozen=True, slots=True)
class ValueSchemas:
    """The type of the column, and the schemas of the messages."""

    kind: ColumnType = BINARY
    schemas: tuple[ValueSchema, ...] = ()
    format: int = 3
    """The version of the files: 2 for brokers that do not know unions and wider twins."""

    @classmethod
    def next(
        cls,
        table: ColumnType | None,
        versions: Sequence[tuple[bytes, SchemaData]],
        *,
        known_to_all: bool = True,
    ) -> ValueSchemas:
        """Return those for further files of a table; ``table`` is its type, None without files.

        A column without types stays so: files that are there cannot be read as anything else.
        Unless format 3 is ``known_to_all`` brokers, the type has only what format 2 can have.
        """
        if table == BINARY or (table is None and not versions):
            return cls()
        from pulsark.schemas.columns import type_of_versions, value_type  # for those with schemas

        schemas = [schema for _, schema in versions]
        if table is None:
            table = in_tables(type_of_versions(schemas)) if known_to_all else BINARY
        for schema in schemas:
            found = in_tables(value_type(schema, format_2=not known_to_all))
            if table != BINARY:
                table = merged(table, found, widen=known_to_all)
            elif not known_to_all:
                table = found
        if table == BINARY:
            return cls()
        found_schemas = tuple(ValueSchema(version, schema) for version, schema in versions)
        return cls(table, found_schemas, 3 if known_to_all else 2)

    def encode(self) -> bytes:
        """The JSON."""
        schemas = [
            {
                "version": each.version.hex(),
                "type": each.schema.type.name,
                "data": base64.b64encode(each.schema.data).decode(),
                "properties": dict(each.schema.properties),
                "form": each.form,
            }
            for each in self.schemas
        ]
        document = {"type": self.kind, "schemas": schemas, "format": self.format}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, value: bytes | str) -> ValueSchemas:
        """The inverse; raises ``KeyError``, ``TypeError``, ``ValueError`` or ``SchemaError``."""
        document = json.loads(value)
        schemas = [
            ValueSchema(
                bytes.fromhex(each["version"]),
                SchemaData(
                    SchemaType[each["type"]],
                    base64.b64decode(each["data"]),
                    dict(each["properties"]),
                ),
                each["form"],
            )
            for each in document["schemas"]
        ]
        return cls(document["type"], tuple(schemas), document.get("format", 2))
