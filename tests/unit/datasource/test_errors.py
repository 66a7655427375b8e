"""Errors of the data source reach users without frames of ours; defects keep all of theirs."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from pulsark.datasource.options.errors import DataSourceError, with_short_tracebacks


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
