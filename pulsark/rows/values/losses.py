"""Values that a column could not hold: of which messages, and in which fields.

Codecs convert each field by itself. Where a value does not fit, the field is null, and the codec
reports it here. So whoever shows the values can keep the payload beside them, count and warn.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.rows.arrow.arrays import Bools, Ints

WHOLE = ""
"""The path of a payload that is no value of its schema at all."""

UNKNOWN = "*"
"""The path of all members of a record that its schema does not have, or that are there twice."""

FIELDS_COUNTED_MAX = 200
"""Fields with a count of their own. Messages that lose others are counted as ``OTHER_FIELDS``."""

OTHER_FIELDS = "..."

Numbers: TypeAlias = "Ints | Callable[[], Ints]"


class Losses:
    """Losses of a column with ``count`` elements. A path is like ``item.price`` or ``tags[]``."""

    def __init__(self, count: int) -> None:
        self.rows: Bools = np.zeros(count, np.bool_)
        """Elements of which something was lost."""
        self._fields: dict[str, Bools] = {}
        self._path = ""
        self._numbers: Numbers | None = None
        self._outer: Losses | None = None

    def within(self, path: str = "", numbers: Numbers | None = None) -> Losses:
        """Return the same losses for a field, whose elements belong to ``numbers`` of the rows."""
        inner = Losses(0)
        inner._outer, inner._path, inner._numbers = self, path, numbers
        return inner

    def add(self, path: str, numbers: Ints) -> None:
        """Report that a field of some elements has a value that its column does not show."""
        if not len(numbers):
            return
        if self._outer is not None:
            own = self._numbers
            if own is not None:
                own = own() if callable(own) else own
                self._numbers = own
                numbers = own[numbers]
            self._outer.add(joined_path(self._path, path), numbers)
            return
        self.rows[numbers] = True
        if path not in self._fields:
            path = path if len(self._fields) < FIELDS_COUNTED_MAX else OTHER_FIELDS
            self._fields.setdefault(path, np.zeros(len(self.rows), np.bool_))
        self._fields[path][numbers] = True

    def where(self, path: str, lost: Bools) -> None:
        """Report the elements where ``lost`` is true."""
        self.add(path, np.flatnonzero(lost))

    def take(self, other: Losses) -> None:
        """Report what was found separately for the same elements."""
        for path, where in other._fields.items():
            self.where(path, where)

    @property
    def counts(self) -> Counter[str]:
        """Elements with a loss, by the path of the field."""
        return Counter({path: int(where.sum()) for path, where in self._fields.items()})


def joined_path(outer: str, inner: str) -> str:
    """Return the path of a field within another one."""
    if not outer or not inner or inner.startswith("["):
        return outer + inner
    return f"{outer}.{inner}"
