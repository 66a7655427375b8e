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

    @classmethod
    def next(
        cls, table: ColumnType | None, versions: Sequence[tuple[bytes, SchemaData]]
    ) -> ValueSchemas:
        """For further files of a table whose column has a type; ``None``: it has no files yet.

        A column without types stays so: files that are there cannot be read as anything else.
        """
        if table == BINARY or (table is None and not versions):
            return cls()
        from pulsark.schemas.columns import type_of_versions, value_type  # for those with schemas

        schemas = [schema for _, schema in versions]
        if table is None:
            table = in_tables(type_of_versions(schemas))
        else:
            for schema in schemas:
                table = merged(table, in_tables(value_type(schema)))
        if table == BINARY:
            return cls()
        return cls(table, tuple(ValueSchema(version, schema) for version, schema in versions))

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
        return json.dumps({"type": self.kind, "schemas": schemas}).encode()

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
        return cls(document["type"], tuple(schemas))
