"""Random Avro definitions, what becomes of them in a next version, and encoded data of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 0.5,
    "double": 1.5,
    "bytes": "b",
    "string": "s",
}


class Author:
    """Writes definitions. Records refer to those around them: behind null, arrays or maps.

    ``records``: how many records a union may hold.
    """

    def __init__(self, rng: Random, *, records: int = 9) -> None:
        self._rng = rng
        self._records = records
        self._numbers = count()

    def new(self, depth: int = 3, around: tuple[str, ...] = ()) -> Any:
        """A definition of any type."""
        rng = self._rng
        if depth == 0:
            return rng.choice(PRIMITIVES)
        match rng.choice(
            ["primitive", "record", "record", "enum", "fixed", "array", "map", "union"]
        ):
            case "record":
                return self._record(depth, around)
            case "enum":
                symbols = [f"S{i}" for i in range(rng.randint(1, 3))]
                return {"type": "enum", "name": self._name("E"), "symbols": symbols}
            case "fixed":
                return {"type": "fixed", "name": self._name("F"), "size": rng.randint(0, 2)}
            case "array":
                return {"type": "array", "items": self._inner(depth, around)}
            case "map":
                return {"type": "map", "values": self._inner(depth, around)}
            case "union":
                branches = ["null", *(self._inner(depth, around) for _ in range(rng.randint(0, 3)))]
                rng.shuffle(branches)
                return union(branches, self._records)
        return rng.choice(PRIMITIVES)

    def _inner(self, depth: int, around: tuple[str, ...]) -> Any:
        if around and self._rng.random() < 0.3:
            return self._rng.choice(around)
        return self.new(depth - 1, around)

    def _record(self, depth: int, around: tuple[str, ...]) -> dict[str, Any]:
        name = self._name("R")
        fields = [
            {"name": self._name("f"), "type": self.new(depth - 1, (*around, name))}
            for _ in range(self._rng.randint(0, 3))
        ]
        return {"type": "record", "name": name, "fields": fields}

    def _name(self, letter: str) -> str:
        number = next(self._numbers)
        return f"x{number % 2}.{letter}{number}" if letter.isupper() else f"{letter}{number}"

    def next_version(self, definition: Any, *, change: float = 0.15, aliases: float = 0.5) -> Any:
        """The definition with some things changed, each with that probability.

        ``aliases``: how many of the records with a new name still know the old one.
        """
        reviser = _Reviser(self._rng, self._numbers, self._records, change, aliases)
        return reviser.revised(definition)


class _Reviser:
    def __init__(
        self, rng: Random, numbers: Iterator[int], records: int, change: float, aliases: float
    ) -> None:
        self._rng = rng
        self._numbers = numbers
        self._records = records
        self._change = change
        self._aliases = aliases
        self._renamed: dict[str, str] = {}

    def _name(self, old: str) -> str:
        """Another namespace, another name, or both."""
        space, _, name = old.partition(".")
        if self._rng.random() < 0.6:
            space = self._rng.choice(["y", "z"])
        if self._rng.random() < 0.6:
            name = f"N{next(self._numbers)}"
        return f"{space}.{name}"

    def _maybe(self) -> bool:
        return self._rng.random() < self._change

    def revised(self, old: Any) -> Any:
        rng = self._rng
        if isinstance(old, list):
            branches = [self.revised(b) for b in old if not self._maybe()]
            if self._maybe():
                branches.append(rng.choice(PRIMITIVES))
            if self._maybe():
                rng.shuffle(branches)
            return union(branches, self._records) if branches else "null"
        new = self._of_one_type(old)
        if self._maybe():
            return union([new, rng.choice(PRIMITIVES)], self._records)
        return new

    def _of_one_type(self, old: Any) -> Any:
        if isinstance(old, str):
            if old in PRIMITIVES and self._maybe():
                return self._rng.choice(PRIMITIVES)
            return self._renamed.get(old, old)
        new = dict(old)
        if "name" in old and self._maybe():
            new["name"] = self._renamed[old["name"]] = self._name(old["name"])
            if self._rng.random() < (self._aliases if old["type"] == "record" else 0.5):
                new["aliases"] = [old["name"]]
        match old["type"]:
            case "record":
                new["fields"] = self._fields(old["fields"])
            case "enum":
                new["symbols"] = [s for s in old["symbols"] if not self._maybe()] or ["T"]
                if self._maybe():
                    new["symbols"] = [*new["symbols"], "U"]
                if self._maybe():
                    new["default"] = new["symbols"][0]
            case "fixed" if self._maybe():
                new["size"] = 3
            case "array":
                new["items"] = self.revised(old["items"])
            case "map":
                new["values"] = self.revised(old["values"])
        return new

    def _fields(self, old: list[Any]) -> list[Any]:
        fields = []
        for each in old:
            new = {"name": each["name"], "type": self.revised(each["type"])}
            if self._maybe():
                continue
            if self._maybe():
                new["name"] = f"g{next(self._numbers)}"
                if self._rng.random() < 0.5:
                    new["aliases"] = [each["name"]]
            fields.append(new)
        if self._maybe():
            kind = self._rng.choice(PRIMITIVES)
            added = {"name": f"g{next(self._numbers)}", "type": kind}
            if self._rng.random() < 0.7:
                added["default"] = DEFAULTS[kind]
            fields.append(added)
        if self._maybe():
            self._rng.shuffle(fields)
        return fields


def union(branches: list[Any], records: int) -> list[Any]:
    """A union of these: no unions in it, no type twice, and so many records at most."""
    found: dict[str, Any] = {}
    for branch in branches:
        for each in branch if isinstance(branch, list) else [branch]:
            if _is_record(each) and sum(map(_is_record, found.values())) == records:
                continue
            kind = each if isinstance(each, str) else each.get("name", each["type"])
            found.setdefault(kind, each)
    return list(found.values())


def _is_record(branch: Any) -> bool:
    """Whether a branch is a record; what is only named always is one."""
    if isinstance(branch, str):
        return branch not in PRIMITIVES
    return bool(branch["type"] == "record")


def is_complete(definition: Any, known: set[str] | None = None) -> bool:
    """Whether every name is defined before it is used: a revision may drop a definition."""
    known = set(PRIMITIVES) if known is None else known
    if isinstance(definition, str):
        return definition in known
    if isinstance(definition, list):
        return all(is_complete(branch, known) for branch in definition)
    if "name" in definition:
        known.add(definition["name"])
    inner = [field["type"] for field in definition.get("fields", ())]
    inner += [definition[key] for key in ("items", "values") if key in definition]
    return all(is_complete(each, known) for each in inner)


# -- data ------------------------------------------------------------------------------------


def encodings(definition: Any, unrolled: int = 6) -> list[bytes]:
    """Encoded data that, taken together, uses each branch and symbol at least once."""
    return _Encoder(unrolled).all(definition, 0)


class _Encoder:
    def __init__(self, unrolled: int) -> None:
        self._unrolled = unrolled
        self._named: dict[str, Any] = {}

    def all(self, definition: Any, depth: int) -> list[bytes]:
        short = depth > self._unrolled
        if isinstance(definition, list):
            found = []
            for index, branch in enumerate(definition):
                if not short or branch == "null" or "null" not in definition:
                    found += [varint(index) + data for data in self.all(branch, depth + 1)]
            return found
        if isinstance(definition, str):
            if definition in _SAMPLES:
                return _SAMPLES[definition]
            return self.all(self._named[definition], depth + 1)
        if "name" in definition:
            self._named[definition["name"]] = definition
        match definition["type"]:
            case "record":
                return self._records(definition["fields"], depth)
            case "enum":
                return [varint(i) for i in range(len(definition["symbols"]))]
            case "fixed":
                return [b"x" * definition["size"]]
            case "array" | "map" as kind:
                empty = varint(0)
                inner = definition["items" if kind == "array" else "values"]
                if short:
                    return [empty]
                key = text(b"k") if kind == "map" else b""
                return [empty, *(varint(1) + key + d + empty for d in self.all(inner, depth + 1))]
        raise AssertionError(definition)

    def _records(self, fields: list[Any], depth: int) -> list[bytes]:
        """One record for each datum of each field, the other fields at their first."""
        columns = [self.all(field["type"], depth + 1) for field in fields]
        first = [column[0] for column in columns]
        found = [b"".join(first)]
        for place, column in enumerate(columns):
            for data in column[1:]:
                found.append(b"".join([*first[:place], data, *first[place + 1 :]]))
        return found


def varint(number: int) -> bytes:
    """An Avro int or long."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def text(content: bytes) -> bytes:
    """Avro bytes or a string."""
    return varint(len(content)) + content


_SAMPLES = {
    "null": [b""],
    "boolean": [b"\1"],
    "int": [varint(-7)],
    "long": [varint(1 << 40)],
    "float": [struct.pack("<f", 0.5)],
    "double": [struct.pack("<d", 1.5)],
    "bytes": [text(b"abc")],
    "string": [text(b"xyz")],
}
