"""Schemas as DDL, read without a JVM: what JSON has values of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pulsark.schemas.column_types import ColumnType, struct

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = {
    "boolean": "boolean",
    "tinyint": "byte",
    "byte": "byte",
    "smallint": "short",
    "short": "short",
    "int": "integer",
    "integer": "integer",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>,:])")
_DEPTH_MAX = 20


def parse_ddl(text: str) -> ColumnType:
    """``id BIGINT, at STRUCT<x: DOUBLE>, tags ARRAY<STRING>`` as a struct; ``ValueError``."""
    reader = _Reader(text)
    found = reader.fields("")
    reader.expect("")
    return found


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._token = next(self._tokens, "")
        self._depth = 0

    def fields(self, end: str) -> ColumnType:
        found: dict[str, ColumnType] = {}
        while True:
            name = self._name()
            if self._token == ":":
                self._take()
            if name in found:
                raise ValueError(f"'{name}' is there twice")
            found[name] = self._type()
            if self._token != ",":
                break
            self._take()
        if self._token != end:
            raise ValueError(f"'{self._token}' is in the place of a comma")
        return struct(found.items())

    def expect(self, token: str) -> None:
        if self._token != token:
            raise ValueError(f"'{self._token}' is in the place of '{token}'")
        self._take()

    def _type(self) -> ColumnType:
        word = self._take().lower()
        if word in _NAMES:
            return _NAMES[word]
        if word not in ("struct", "array"):
            raise ValueError(
                f"'{word}' is none of {', '.join(_NAMES)}, array and struct; from_json of Spark "
                "knows more"
            )
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} times")
        self.expect("<")
        found: ColumnType
        if word == "struct":
            found = self.fields(">")
        else:
            element = self._type()
            found = {"type": "array", "elementType": element, "containsNull": True}
        self.expect(">")
        self._depth -= 1
        return found

    def _name(self) -> str:
        token = self._take()
        if not re.fullmatch(r"`.+`|\w+", token, re.DOTALL):
            raise ValueError(f"'{token}' is in the place of a name")
        return token[1:-1].replace("``", "`") if token.startswith("`") else token

    def _take(self) -> str:
        token, self._token = self._token, next(self._tokens, "")
        return token


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"'{text[place : place + 20].strip()}' cannot be read")
        yield match[1]
        place = match.end()
