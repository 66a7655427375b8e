"""How a client writes JSON: the spacing, the order of members, and what it does with nulls."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pulsark.limits import FORM_SAMPLE_BYTES_MAX
from pulsark.schemas.avro import Array, AvroType, Map, Record, Union
from pulsark.schemas.columns import branch_of, shown_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SAMPLE: Final = 64
"""Messages from which a form is learned."""

DIGITS_MAX: Final = 4300
"""Digits of the longest integer that Python reads."""


@dataclass(frozen=True, slots=True)
class JsonForm:
    """A form. All messages of a schema version in one file are expected to have it."""

    item_separator: str = ","
    key_separator: str = ":"
    indent: int | None = None
    ascii: bool = False
    """Whether other characters are escaped."""
    nulls: bool = False
    """Whether fields without a value are written; otherwise they are left out."""
    order: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The order of fields where it is not the schema's, by the path of their record."""

    def line(self, depth: int) -> str:
        """What stands in front of each member at a depth."""
        return "" if self.indent is None else "\n" + " " * (self.indent * depth)

    def fields(self, record: Record, path: str) -> list[str]:
        """The fields of a record in their order."""
        shown = shown_fields(record)
        known = [name for name in self.order.get(path, ()) if name in record.fields]
        return [*known, *(name for name in shown if name not in known)]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a file."""
        return {
            "separators": [self.item_separator, self.key_separator],
            "indent": self.indent,
            "ascii": self.ascii,
            "nulls": self.nulls,
            "order": {path: list(names) for path, names in self.order.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> JsonForm:
        """The inverse; raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        item, key = document["separators"]
        indent = document["indent"]
        order = {str(path): list(map(str, names)) for path, names in document["order"].items()}
        return cls(
            str(item),
            str(key),
            None if indent is None else int(indent),
            bool(document["ascii"]),
            bool(document["nulls"]),
            order,
        )


_SPACINGS: Final = (
    JsonForm(),
    JsonForm(", ", ": ", None, True),
    JsonForm(",", ": ", 1, True),
    JsonForm(",", ": ", 2, True),
    JsonForm(",", ": ", 4, True),
    JsonForm(",", ":", None, True),
    JsonForm(", ", ": "),
    JsonForm(",", ": ", 1),
    JsonForm(",", ": ", 2),
    JsonForm(",", ": ", 4),
)
"""The first of equal forms counts: most messages have no characters to escape."""


class NamedNumber(float):
    """``Infinity``, ``-Infinity`` or ``NaN`` as JSON names it, not a number too large to hold."""


def loaded(text: bytes, object_of: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the document of a text in UTF-8. Raises ``ValueError`` or ``RecursionError``.

    ``json.loads`` guesses at other encodings, in which brackets and quotes cannot be counted.
    ``object_of`` makes an object of its members.
    """
    found = str(text, "utf-8-sig", "surrogatepass")
    if len(found) <= DIGITS_MAX:
        return json.loads(found, object_pairs_hook=object_of, parse_constant=NamedNumber)
    return json.loads(
        found, object_pairs_hook=object_of, parse_constant=NamedNumber, parse_int=_integer
    )


def _integer(digits: str) -> int | float:
    """Return a number as Arrow reads it, however long it is: Python refuses long integers."""
    return int(digits) if len(digits) <= DIGITS_MAX else float(digits)


def learn_form(avro: AvroType, payloads: Sequence[bytes]) -> JsonForm:
    """The form that most of some messages have."""
    documents = []
    spacings: Counter[int] = Counter()
    room = FORM_SAMPLE_BYTES_MAX
    for payload in payloads[:SAMPLE]:
        if len(payload) > room:
            continue
        room -= len(payload)
        try:
            document = loaded(payload)
        except (ValueError, RecursionError):
            continue
        documents.append(document)
        spacings.update(n for n, form in enumerate(_SPACINGS) if _is_in(form, payload, document))
    number = max(range(len(_SPACINGS)), key=lambda n: (spacings[n], -n))
    form = _SPACINGS[number]
    orders: dict[str, list[str]] = {}
    nulls = False
    for path, record, found in _records(documents, avro, ""):
        nulls = nulls or any(found[name] is None for name in record.fields if name in found)
        _learn_order(orders.setdefault(path, []), [name for name in found if name in record.fields])
    own = {
        path: names
        for path, names in orders.items()
        if names != [name for name in _order_of(avro, path) if name in names]
    }
    return JsonForm(form.item_separator, form.key_separator, form.indent, form.ascii, nulls, own)


def _is_in(form: JsonForm, payload: bytes, document: Any) -> bool:
    separators = (form.item_separator, form.key_separator)
    try:
        text = json.dumps(
            document, separators=separators, indent=form.indent, ensure_ascii=form.ascii
        )
        return text.encode() == payload
    except (ValueError, RecursionError):
        return False


def _records(
    found: Sequence[Any], avro: AvroType, path: str
) -> Iterator[tuple[str, Record, dict[str, Any]]]:
    """The objects of records within values, and where they are."""
    match avro:
        case Union():
            branch = branch_of(avro)
            if branch is not None:
                yield from _records(found, branch, path)
        case Array(items):
            lists = [value for value in found if isinstance(value, list)]
            yield from _records([item for value in lists for item in value], items, f"{path}[]")
        case Map(values):
            maps = [value for value in found if isinstance(value, dict)]
            yield from _records([v for value in maps for v in value.values()], values, f"{path}[]")
        case Record():
            objects = [value for value in found if isinstance(value, dict)]
            for each in objects:
                yield path, avro, each
            if not objects:
                return
            for name, member in avro.fields.items():
                inside = [each[name] for each in objects if name in each]
                if inside:
                    yield from _records(inside, member.type, f"{path}.{name}")


def _order_of(avro: AvroType, path: str) -> list[str]:
    """The fields of the record at a path, as the schema has them."""
    for part in path.replace("[]", ".[]").split(".")[1:]:
        avro = _alone(avro)
        if isinstance(avro, Array):
            avro = avro.items
        elif isinstance(avro, Map):
            avro = avro.values
        elif isinstance(avro, Record):
            avro = avro.fields[part].type
    avro = _alone(avro)
    return list(avro.fields) if isinstance(avro, Record) else []


def _alone(avro: AvroType) -> AvroType:
    """Return the one type that a union has besides null; any other type as it is."""
    branch = branch_of(avro) if isinstance(avro, Union) else None
    return avro if branch is None else branch


def _learn_order(known: list[str], found: list[str]) -> None:
    """Add names that were not known yet, behind those they follow."""
    place = 0
    for name in found:
        if name in known:
            place = known.index(name) + 1
        else:
            known.insert(place, name)
            place += 1
