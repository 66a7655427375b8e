"""The table of attacks names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = Path(__file__).with_name("README.md").read_text().splitlines()
ROWS = [line for line in LINES if line.startswith("| ")][1:]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PORTS = {
    "binary",
    "payloads",
    "compression",
    "names",
    "TLS",
    "tokens",
    "HTTP",
    "Flight",
    "ZooKeeper, bookie",
}


@pytest.fixture(autouse=True)
def nothing_happened() -> None:
    """No broker is needed here."""


def test_every_row_names_tests_that_exist() -> None:
    for row in ROWS:
        _, _, _, tests, _ = re.split(r"\s*\|\s*", row)
        named = NAMED.findall(tests)
        assert named or tests.startswith("nothing: "), row
        for file, test in named:
            found = ast.parse((ROOT / file).read_text()).body
            names = {each.name for each in found if hasattr(each, "name")}
            assert not test or test in names, f"{file}::{test}"


def test_all_ports_and_all_tests_of_this_folder_are_in_it() -> None:
    assert {re.split(r"\s*\|\s*", row)[1] for row in ROWS} == PORTS
    named = {(Path(file).name, test) for row in ROWS for file, test in NAMED.findall(row)}
    for file in Path(__file__).parent.glob("test_*.py"):
        for each in ast.parse(file.read_text()).body:
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
                listed = (file.name, each.name) in named
                assert listed or file.name == "test_table.py", f"{file.name}::{each.name}"
