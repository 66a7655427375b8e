"""Random schemas that evolve, random values of them, and what a reader may show of a value."""

from __future__ import annotations

import io
import json
import math
import random
import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import fastavro

from pulsark.schemas.compatibility import check
from pulsark.schemas.definition import IncompatibleSchemaError, SchemaData, SchemaType
from pulsark.schemas.parsed import parse
from pulsark.schemas.strategies import SchemaCompatibilityStrategy

Definition = dict[str, Any]

_WIDER = {
    "int": ("long", "float", "double"),
    "long": ("float", "double", "int"),
    "float": ("double", "int"),
    "double": ("float", "long"),
    "string": ("bytes", "int"),
    "bytes": ("string", "double"),
    "boolean": ("string",),
}
_EXACT = Context(prec=60)
_LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
}
_EPOCH = datetime(1970, 1, 1)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Member:
    """The value of a union: which type besides null it has."""

    number: int
    value: Any


class Opaque:
    """A value that no column can show."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A number with a logical type: a date, a timestamp or a time of a day."""

    number: int
    logical: str

    def is_shown_as(self, shown: Any) -> bool:
        """Return whether a column shows this: as a time, as text, or as the number itself."""
        if isinstance(shown, int):
            return shown == self.number
        unit = timedelta(days=1) if self.logical == "date" else timedelta(microseconds=1)
        if self.logical.endswith("millis"):
            unit = timedelta(milliseconds=1)
        try:
            time = _EPOCH + self.number * unit
        except OverflowError:
            return False
        if self.logical == "date":
            return bool(shown == time.date())
        if self.logical.startswith("time-"):
            spec = "milliseconds" if self.logical.endswith("millis") else "microseconds"
            inside = timedelta(0) <= time - _EPOCH < _DAY
            if not isinstance(shown, str):  # the official client; outside a day it guesses
                return not inside or bool(shown == time.time())
            return inside and bool(shown == time.time().isoformat(spec))
        naive = shown.astimezone(UTC).replace(tzinfo=None) if shown.tzinfo else shown
        return bool(naive == time)


class Evolution:
    """Versions of one schema, each accepted by a strategy after those before it."""

    def __init__(self, seed: int, kind: SchemaType, strategy: SchemaCompatibilityStrategy) -> None:
        self.rng = random.Random(seed)
        self.kind = kind
        self._names = iter(range(10_000))
        fields = [self._field() for _ in range(self.rng.randint(1, 4))]
        if self.rng.random() < 0.2:
            fields.append({**self._field(), "name": fields[0]["name"].upper()})
        self.definitions: list[Definition] = [self._record("R", fields)]
        for _ in range(12):
            new = self._changed(self.definitions[-1])
            versions = [parse(self.schema(each)) for each in self.definitions]
            try:
                check(versions, parse(self.schema(new)), strategy)
            except IncompatibleSchemaError:
                continue
            self.definitions.append(new)
            if len(self.definitions) == 4:
                break

    def schema(self, definition: Definition) -> SchemaData:
        """Return the schema of one version."""
        return SchemaData(self.kind, json.dumps(definition).encode())

    def payload(self, definition: Definition, value: Any) -> bytes:
        """Return what a client sends."""
        if self.kind is SchemaType.JSON:
            return json.dumps(_plain(value)).encode()
        stream = io.BytesIO()
        plain = json.loads(json.dumps(definition).replace('"logicalType"', '"other"'))
        fastavro.schemaless_writer(stream, fastavro.parse_schema(plain), _written(plain, value))
        return stream.getvalue()

    def shown(self, definition: Definition, value: Any) -> Any:
        """Return what readers show of a value."""
        return value

    # -- definitions -----------------------------------------------------------------------

    def _name(self) -> str:
        return f"n{next(self._names)}"

    def _record(self, name: str, fields: list[Definition]) -> Definition:
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, optional: bool = False) -> Definition:
        kind = self._type(2)
        if optional or self.rng.random() < 0.4:
            branches = kind if isinstance(kind, list) else [kind]
            if "null" not in branches:
                kind = ["null", *branches]
            return {"name": self._name(), "type": kind, "default": None}
        return {"name": self._name(), "type": kind}

    def _type(self, depth: int) -> Any:
        simple = [*_WIDER, *_WIDER, "enum", "fixed", "decimal", "fixed decimal", "logical"]
        kind = self.rng.choice([*simple, "array", "map", "record", "union"] if depth else simple)
        match kind:
            case "enum":
                return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]}
            case "fixed":
                return {"type": "fixed", "name": self._name(), "size": 3}
            case "decimal":
                return {"type": "bytes", **self._digits()}
            case "fixed decimal":
                return {"type": "fixed", "name": self._name(), "size": 12, **self._digits()}
            case "logical":
                logical, number = self.rng.choice(list(_LOGICAL.items()))
                return {"type": number, "logicalType": logical}
            case "array":
                return {"type": "array", "items": self._type(depth - 1)}
            case "map":
                return {"type": "map", "values": self._type(depth - 1)}
            case "record":
                return self._record(self._name(), [self._field() for _ in range(2)])
            case "union":
                return self.rng.choice(
                    [["int", "string"], ["null", "boolean", "double", "string"], ["long", "bytes"]]
                )
        return kind

    def _digits(self) -> Definition:
        scale = self.rng.randint(0, 4)
        precision = self.rng.randint(scale + 1, 20)
        return {"logicalType": "decimal", "precision": precision, "scale": scale}

    def _changed(self, definition: Definition) -> Definition:
        new: Definition = json.loads(json.dumps(definition))
        fields = new["fields"]
        match self.rng.randint(0, 5):
            case 0:
                fields.insert(self.rng.randint(0, len(fields)), self._field(optional=True))
            case 1 if len(fields) > 1:
                fields.pop(self.rng.randrange(len(fields)))
            case _:
                field = self.rng.choice(fields)
                field["type"] = self._other(field["type"])
        return new

    def _other(self, kind: Any) -> Any:
        if isinstance(kind, list):
            place = self.rng.randrange(len(kind))
            if kind[place] != "null":
                other = self._other(kind[place])
                if other not in kind and not isinstance(other, list):
                    return [*kind[:place], other, *kind[place + 1 :]]
            return kind
        if isinstance(kind, str):
            if self.rng.random() < 0.2:
                return ["null", kind]
            return self.rng.choice(_WIDER[kind])
        match kind["type"]:
            case "int" | "long":
                other = [name for name, number in _LOGICAL.items() if number == kind["type"]]
                return self.rng.choice(
                    [kind["type"], "long", {**kind, "logicalType": self.rng.choice(other)}]
                )
            case "enum":
                more = f"S{len(kind['symbols'])}"
                return {**kind, "symbols": [*kind["symbols"], more]}
            case "array":
                return {**kind, "items": self._other(kind["items"])}
            case "map":
                return {**kind, "values": self._other(kind["values"])}
            case "record":
                return self._changed(kind)
        return {**kind, **self._digits()} if "precision" in kind else kind

    # -- values ----------------------------------------------------------------------------

    def value(self, kind: Any) -> Any:
        """Return a random value, as a client that knows the logical types gives it."""
        rng = self.rng
        if isinstance(kind, list):
            branch = rng.choice(kind)
            members = [each for each in kind if each != "null"]
            if branch == "null" or len(members) == 1:
                return self.value(branch)
            return Member(members.index(branch), self.value(branch))
        if isinstance(kind, dict) and "precision" in kind:
            if self.kind is SchemaType.JSON:
                return "text"
            size = kind["precision"]
            if kind["type"] == "fixed":
                size = min(size, 28)
            number = rng.randint(-(10**size) + 1, 10**size - 1)
            return Decimal(number).scaleb(-kind["scale"], _EXACT)
        if isinstance(kind, dict) and "logicalType" in kind:
            number = self.rng.choice([0, 1_700_000_000, 86_399_999, -1, self.value(kind["type"])])
            return Moment(number, kind["logicalType"])
        match kind if isinstance(kind, str) else kind["type"]:
            case "null":
                return None
            case "boolean":
                return rng.random() < 0.5
            case "int":
                return rng.choice([0, rng.randint(-(2**31), 2**31 - 1), 2**24 + 1])
            case "long":
                return rng.choice([5_000_000_000, rng.randint(-(2**63), 2**63 - 1), 2**53 + 1, 7])
            case "float":
                return struct.unpack("<f", struct.pack("<f", rng.choice([0.1, -2.5, 3e38])))[0]
            case "double":
                return rng.choice([0.1, 1e300, 123456789.123, 3.0, -0.0, rng.random()])
            case "string":
                return rng.choice(["", "x", "ünï🚀", "1"])
            case "bytes":
                return "raw" if self.kind is SchemaType.JSON else rng.choice([b"", b"ab", b"\xff"])
            case "fixed":
                return "abc" if self.kind is SchemaType.JSON else rng.choice([b"abc", b"\xff\0\1"])
            case "enum":
                return rng.choice(kind["symbols"])
            case "array":
                return [self.value(kind["items"]) for _ in range(rng.randint(0, 3))]
            case "map":
                return {key: self.value(kind["values"]) for key in "abc"[: rng.randint(0, 3)]}
        return {field["name"]: self.value(field["type"]) for field in kind["fields"]}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case Member():
            return _plain(value.value)
        case Moment():
            return value.number
        case dict():
            return {key: _plain(item) for key, item in value.items() if item is not None}
        case list():
            return [_plain(item) for item in value]
    return value


def _written(kind: Any, value: Any) -> Any:
    """Return a value as the library takes it, which does not know its logical types."""
    if isinstance(kind, list):
        members = [each for each in kind if each != "null"]
        if isinstance(value, Member):
            return (members[value.number], _written(members[value.number], value.value))
        return None if value is None else _written(members[0], value)
    if isinstance(value, Moment):
        return value.number
    if isinstance(value, Decimal):
        number = int(value.scaleb(kind["scale"], _EXACT))
        size = kind["size"] if kind["type"] == "fixed" else number.bit_length() // 8 + 1
        return number.to_bytes(size, "big", signed=True)
    if isinstance(kind, dict) and isinstance(value, list):
        return [_written(kind["items"], item) for item in value]
    if isinstance(kind, dict) and kind["type"] == "map":
        return {key: _written(kind["values"], item) for key, item in value.items()}
    if isinstance(kind, dict) and kind["type"] == "record":
        return {f["name"]: _written(f["type"], value[f["name"]]) for f in kind["fields"]}
    return value


def for_client(kind: Any, value: Any) -> Any:
    """Return a value as the official client takes it: of a union, with the name of its type."""
    if isinstance(kind, list):
        members = [each for each in kind if each != "null"]
        if isinstance(value, Member):
            return (members[value.number], value.value)
        return None if value is None else for_client(members[0], value)
    if isinstance(value, Moment):
        return value.number
    if isinstance(kind, dict) and isinstance(value, list):
        return [for_client(kind["items"], item) for item in value]
    if isinstance(kind, dict) and kind["type"] == "map":
        return {key: for_client(kind["values"], item) for key, item in value.items()}
    if isinstance(kind, dict) and kind["type"] == "record":
        return {f["name"]: for_client(f["type"], value[f["name"]]) for f in kind["fields"]}
    return value


def is_shown(sent: Any, shown: Any) -> bool:
    """Return whether all of a value is shown. ``AssertionError`` if something else is."""
    if sent is None:
        assert shown is None or shown == [] or _is_nothing(shown), (sent, shown)
        return True
    if shown is None:
        return False
    assert not isinstance(sent, Opaque), shown
    if isinstance(sent, Moment):
        if isinstance(shown, dict):
            return any(is_shown(sent, item) for item in shown.values() if item is not None)
        shown = float(shown) if isinstance(shown, Decimal) else shown
        if isinstance(shown, float):
            return is_shown(sent.number, shown)
        assert sent.is_shown_as(shown), (sent, shown)
        return True
    if isinstance(sent, Member):
        if not isinstance(shown, dict):
            return is_shown(sent.value, shown)
        found = shown.get(f"member{sent.number}")
        others = {k: v for k, v in shown.items() if k != f"member{sent.number}"}
        if found is None and not _is_nothing(others):
            # JSON does not say which type a value has: an earlier one may fit as well.
            return any(
                is_shown(sent.value, other) for other in others.values() if other is not None
            )
        return is_shown(sent.value, found)
    if isinstance(sent, dict):
        found = dict(shown) if isinstance(shown, list) else shown
        parts = [
            is_shown(item, _twins(found, key)) or (item in ([], {}) and not _columns(found, key))
            for key, item in sent.items()
        ]
        return all(parts)
    if isinstance(sent, list):
        assert len(sent) == len(shown), (sent, shown)
        parts = [is_shown(*pair) for pair in zip(sent, shown, strict=True)]
        return all(parts)
    if isinstance(shown, dict):
        return any(is_shown(sent, item) for item in shown.values() if item is not None)
    if isinstance(sent, bytes) != isinstance(shown, bytes):
        sent, shown = (x.encode() if isinstance(x, str) else x for x in (sent, shown))
    if isinstance(sent, float) and math.isnan(sent):
        return bool(math.isnan(shown))
    assert isinstance(sent, bool) == isinstance(shown, bool), (sent, shown)
    assert sent == shown, (sent, shown)
    return True


def _twins(shown: dict[str, Any], name: str) -> Any:
    """Return the value of a field or of its wider twins, the widest first."""
    for key in sorted(_columns(shown, name), reverse=True):
        if shown[key] is not None:
            return shown[key]
    return None


def _columns(shown: dict[str, Any], name: str) -> list[str]:
    return [key for key in shown if key == name or key.startswith(f"{name}__")]


def _is_nothing(shown: Any) -> bool:
    return isinstance(shown, dict) and all(item is None for item in shown.values())
