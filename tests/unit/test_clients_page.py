"""docs/clients.md says which clients were run, and those are the ones that are pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import pinned
from tests.clients.pinned import PINNED, Ran, read_record, write_record
from tests.docs.clients import PAGE, problems, with_table, written_table

RAN = {key: Ran(pin.version, "0.1.0", ("test_some.py",)) for key, pin in PINNED.items()}


def test_the_page_is_up_to_date() -> None:
    assert problems(read_record(), PAGE.read_text()) == []


def test_a_client_that_was_not_run_as_it_is_pinned_is_noticed() -> None:
    page = with_table(PAGE.read_text(), RAN)
    assert problems(RAN, page) == []
    old = {**RAN, "go": Ran("0.0.1", "0.1.0", ())}
    assert "go: 0.0.1 was run" in problems(old, with_table(page, old))[0]
    less = {key: row for key, row in RAN.items() if key != "java-v5"}
    assert "java-v5 5.0.0-M1 was never run" in problems(less, with_table(page, less))[0]
    more = {**RAN, "cobol": RAN["go"]}
    assert problems(more, page) == ["cobol is not pinned any more"]


def test_another_table_is_noticed() -> None:
    page = with_table(PAGE.read_text(), RAN).replace("test_some.py", "test_other.py")
    assert "another table" in problems(RAN, page)[0]


def test_the_rest_of_the_page_stays() -> None:
    page = with_table("before\n", RAN) + "after\n"
    again = with_table(page, {"go": RAN["go"]})
    assert again.startswith("before\n")
    assert again.endswith("after\n")
    assert written_table(again).count("\n") == 3


def test_runs_of_one_version_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "HERE", tmp_path)
    record = tmp_path / "ran.toml"
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).touch()
        write_record({"go": {name}}, record)
    assert read_record(record)["go"].files == ("test_a.py", "test_b.py")
    (tmp_path / "test_a.py").unlink()
    write_record({"go": {"test_b.py"}, "python": {"test_b.py"}}, record)
    assert {key: row.files for key, row in read_record(record).items()} == {
        "go": ("test_b.py",),
        "python": ("test_b.py",),
    }
    record.write_text(record.read_text().replace(PINNED["go"].version, "0.0.1"))
    (tmp_path / "test_a.py").touch()
    write_record({"go": {"test_a.py"}}, record)
    assert read_record(record)["go"] == Ran(PINNED["go"].version, "0.1.0", ("test_a.py",))
