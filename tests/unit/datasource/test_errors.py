"""Errors of the data source: users see no frames of ours, and advice that they can follow."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.datasource.options import options
from pulsark.datasource.options.errors import DataSourceError, with_short_tracebacks
from pulsark.datasource.options.option_docs import OPTIONS
from pulsark.datasource.write.write_options import WRITE_OPTIONS

DATASOURCE = Path(options.__file__).parents[1]


def deep(error: Exception, depth: int = 5) -> None:
    if depth:
        deep(error, depth - 1)
    try:
        raise ValueError("the cause")
    except ValueError as cause:
        raise error from cause


@with_short_tracebacks
class Reader:
    def plan(self) -> list[int]:
        deep(DataSourceError("no topic"))
        return []

    def read(self) -> Iterator[int]:
        yield 1
        deep(DataSourceError("no entry"))

    def rows(self) -> Iterator[int]:
        return self._rows()

    def _rows(self) -> Iterator[int]:
        yield 1
        deep(DataSourceError("no row"))

    def defect(self) -> None:
        deep(KeyError("x"))


@pytest.mark.parametrize(
    "use", [lambda r: r.plan(), lambda r: list(r.read()), lambda r: list(r.rows())]
)
def test_an_error_for_users_has_one_frame_of_ours(use: object) -> None:
    with pytest.raises(DataSourceError, match="pulsark: no") as caught:
        use(Reader())  # type: ignore[operator]
    text = "".join(traceback.format_exception(caught.value))
    assert "in deep" not in text
    assert "the cause" not in text


def test_rows_before_the_error_are_there() -> None:
    assert next(iter(Reader().read())) == next(iter(Reader().rows())) == 1


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        Reader().defect()
    text = "".join(traceback.format_exception(caught.value))
    assert "in deep" in text
    assert "the cause" in text


MODES = {
    "read/time_travel.py": "batch",
    "read/file_times.py": "batch",
    "read/views.py": "batch",
    "read/stream_reader.py": "stream",
    "read/following.py": "stream",
    "read/admission.py": "stream",
    "read/unlimited_stream.py": "stream",
}
"""Modules that serve one kind of read; others serve both."""


def raised_texts(path: Path) -> Iterator[str]:
    """Yield the texts of the errors that a module makes, without what is put into them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Error"):
            parts = [each for each in ast.walk(node) if isinstance(each, ast.Constant)]
            parts.sort(key=lambda each: (each.lineno, each.col_offset))
            yield "".join(each.value for each in parts if isinstance(each.value, str))


@pytest.mark.parametrize("path", sorted(DATASOURCE.rglob("*.py")), ids=lambda path: path.name)
def test_advice_names_options_of_the_same_kind_of_query(path: Path) -> None:
    read = {key for doc in OPTIONS for key in (doc.name, *doc.aliases)}
    write = {key for doc in WRITE_OPTIONS for key in (doc.name, *doc.aliases)}
    place = path.relative_to(DATASOURCE).as_posix()
    known = {"write": write, "read": read}.get(place.partition("/")[0], read | write)
    not_known = {
        "batch": {*options._STREAM_ONLY, "subscription"},
        "stream": set(options._BATCH_ONLY),
    }
    for text in raised_texts(path):
        for name in re.findall(r"options? '?([a-z]+[A-Z][A-Za-z.]*|subscription)\b", text):
            assert name in known, text
            assert name not in not_known.get(MODES.get(place, ""), ()), text
