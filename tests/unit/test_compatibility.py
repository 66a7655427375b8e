"""docs/compatibility.md says what the markers of the tests say, and leaves nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.compatibility import (
    PAGE,
    ROOT,
    WRITE,
    Data,
    Mark,
    check,
    collect,
    commands,
    page,
    read_data,
)

FEATURES = {f"F{number}": "wording" for number in range(1, 93)}


def test_the_page_is_up_to_date() -> None:
    data = read_data()
    marks, problems = collect(ROOT / "tests")
    assert problems + check(marks, data) == []
    assert PAGE.read_text() == page(marks, data), f"run: {WRITE}"


SOURCE = """
import pytest
pytestmark = pytest.mark.feature("F1")

@pytest.mark.command("SEEK", "ACK")
@pytest.mark.slow
def test_one(): ...

@pytest.mark.command("PING")
class TestTwo:
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.feature("F2"))])
    async def test_two(self, n): ...

@pytest.mark.feature("F3")
def no_test(): ...
"""


def test_markers_are_found_on_tests_classes_and_files(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOURCE)
    marks, problems = collect(tmp_path, tmp_path)
    assert problems == []
    assert {(mark.row, mark.test) for mark in marks} == {
        ("F1", "test_one"),
        ("SEEK", "test_one"),
        ("ACK", "test_one"),
        ("F1", "test_two"),
        ("PING", "test_two"),
        ("F2", "test_two"),
    }


@pytest.mark.parametrize("wrong", ['feature("SEEK")', 'feature("F93")', "feature(F1)"])
def test_a_marker_must_name_what_its_kind_has(tmp_path: Path, wrong: str) -> None:
    source = f"@pytest.mark.{wrong}\ndef test_one(): ...\n"
    (tmp_path / "test_some.py").write_text(source)
    marks, (problem,) = collect(tmp_path, tmp_path)
    assert marks == set()
    assert problem.startswith("test_some.py:1: ")


def everything(**changed: str) -> Data:
    """All rows with a reason, but for those given: "" takes a reason away."""
    reasons = dict.fromkeys([*FEATURES, *commands()], "not yet") | changed
    return Data(FEATURES, {row: why for row, why in reasons.items() if why}, {})


def test_a_row_has_a_test_or_a_reason_and_not_both() -> None:
    mark = Mark("F7", "tests/test_some.py", "test_one")
    assert check({mark}, everything(F7="")) == []
    assert "F7 has no test: mark one" in check(set(), everything(F7=""))[0]
    assert "F7 has a test: take it out" in check({mark}, everything())[0]
    (unknown,) = check({Mark("SEEQ", "tests/test_some.py", "test_one")}, everything())
    assert "there is no SEEQ" in unknown


def test_what_the_data_says_of_unknown_rows_is_noticed() -> None:
    assert "SEEQ" in check(set(), everything(SEEQ="never"))[0]
    data = everything()
    partly = Data(data.features, data.not_built, {"F7": "half"})
    assert "F7 has no test: [partly]" in check(set(), partly)[0]


def test_cells_of_the_page() -> None:
    marks = {Mark("F7", "tests/a/test_x.py", name) for name in ("test_two", "test_one")}
    data = everything(F7="")
    text = page(marks, Data(data.features, data.not_built, {"F7": "half"}))
    cell = "[a/test_x.py](../tests/a/test_x.py): `test_one`, `test_two`<br>*in part: half*"
    assert f"| F7 | wording | {cell} |" in text
    assert "| 28 | SEEK | not built, because not yet |" in text
