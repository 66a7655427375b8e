"""Schemas as DDL, read without a JVM, and the values that JSON has of their types."""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from pulsark.schemas.column_types import ColumnType, decimal_digits, struct

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
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
}
_DECIMALS = ("decimal", "dec", "numeric")
_DIGITS_MAX = 38
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+|[<>,:()])")
_DEPTH_MAX = 20
_EXACT = Context(prec=100)


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
        if word in _DECIMALS:
            return self._decimal()
        if word not in ("struct", "array", "map"):
            raise ValueError(
                f"'{word}' is none of {', '.join(_NAMES)}, decimal, array, map and struct; "
                "from_json of Spark knows more"
            )
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} times")
        self.expect("<")
        found: ColumnType
        if word == "struct":
            found = self.fields(">")
        elif word == "map":
            if self._type() != "string":
                raise ValueError("the keys of a map are STRING, as JSON's are")
            self.expect(",")
            item = self._type()
            found = {
                "type": "map", "keyType": "string", "valueType": item, "valueContainsNull": True,
            }  # fmt: skip
        else:
            element = self._type()
            found = {"type": "array", "elementType": element, "containsNull": True}
        self.expect(">")
        self._depth -= 1
        return found

    def _decimal(self) -> ColumnType:
        digits = [10, 0]
        if self._token == "(":
            self._take()
            digits = [self._number(), 0]
            if self._token == ",":
                self._take()
                digits[1] = self._number()
            self.expect(")")
        if not 1 <= digits[0] <= _DIGITS_MAX or digits[1] > digits[0]:
            raise ValueError(f"DECIMAL({digits[0]},{digits[1]}): up to {_DIGITS_MAX} digits")
        return f"decimal({digits[0]},{digits[1]})"

    def _number(self) -> int:
        token = self._take()
        if not re.fullmatch(r"\d{1,3}", token):
            raise ValueError(f"'{token}' is in the place of a number")
        return int(token)

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


def json_scalar(value: Any, kind: ColumnType) -> Any:
    """Return what JSON says as Python's value of a simple type; None where it says none of it.

    Dates and times are ISO 8601 texts, as Spark's ``from_json`` takes them by default, times
    without a zone are UTC, decimals are numbers or texts, and binary values are base64.
    """
    assert isinstance(kind, str)
    digits = decimal_digits(kind)
    if digits is not None:
        return _decimal(value, *digits)
    if not isinstance(value, str):
        return None
    try:
        if kind == "binary":
            return base64.b64decode(value, validate=True)
        if kind == "date":
            return date.fromisoformat(value[:10])
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        given = Decimal(str(value))
        found = given.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except InvalidOperation:
        return None
    is_exact = found == given and len(found.as_tuple().digits) <= precision
    return found if is_exact else None
