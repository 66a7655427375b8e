"""Writes ``docs/compatibility.md``: every command and feature, and the tests that show it.

::

    python -m tests.docs.compatibility --write

A test says what it shows by a marker, on itself, its class or its file::

    @pytest.mark.feature("F33", "F34")
    @pytest.mark.command("SEEK")

``compatibility.toml`` has the wording of the features, and the reason for everything that no test
shows. Markers are read from the syntax tree: no test module is imported.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulsark.wire import pulsar_pb2 as pb

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).with_name("compatibility.toml")
PAGE = ROOT / "docs" / "compatibility.md"
WRITE = "python -m tests.docs.compatibility --write"

MARKERS = ("feature", "command")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, order=True)
class Mark:
    """A test that shows a row."""

    row: str
    path: str
    """From the root of the repository."""
    test: str


@dataclass(frozen=True)
class Data:
    """What is said about rows beside the tests."""

    features: Mapping[str, str]
    """The wording of each feature, by its row."""
    not_built: Mapping[str, str]
    """Why there is no test, by row or command."""
    partly: Mapping[str, str]
    """What is missing of a row that has tests."""


def commands() -> dict[str, int]:
    """The types of commands, by name."""
    return dict(pb.BaseCommand.Type.items())


def read_data(path: Path = DATA) -> Data:
    text = tomllib.loads(path.read_text())
    return Data(text["features"], text["not_built"], text["partly"])


def collect(folder: Path, root: Path = ROOT) -> tuple[set[Mark], list[str]]:
    """All marks of the tests in a folder, and what is wrong with markers."""
    marks: set[Mark] = set()
    problems: list[str] = []
    for path in sorted(folder.rglob("test_*.py")):
        place = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(), place)
        for test, nodes in _tests(tree.body, _file_marks(tree)):
            for row in _rows(nodes, place, problems):
                marks.add(Mark(row, place, test))
    return marks, problems


def _file_marks(tree: ast.Module) -> list[ast.expr]:
    return [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)
    ]


def _tests(
    body: Sequence[ast.stmt], inherited: list[ast.expr]
) -> Iterator[tuple[str, list[ast.expr]]]:
    """Tests with the expressions that may hold markers of theirs."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, [*inherited, *node.decorator_list])
        elif isinstance(node, _FUNCTIONS) and node.name.startswith("test_"):
            yield node.name, [*inherited, *node.decorator_list]


def _rows(nodes: Sequence[ast.expr], place: str, problems: list[str]) -> Iterator[str]:
    """The rows that markers in the expressions name."""
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) in _CALLS):
            continue
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                kind = "feature" if argument.value in _feature_names() else "command"
                if ast.unparse(node.func).endswith(kind):
                    yield argument.value
                    continue
            problems.append(
                f"{place}:{argument.lineno}: {ast.unparse(argument)} is no name that "
                f"{ast.unparse(node.func)} takes: features are F1 to F92, commands are the types "
                "of the protocol in capitals"
            )


_CALLS = {f"pytest.mark.{name}" for name in MARKERS}


def _feature_names() -> set[str]:
    return {f"F{number}" for number in range(1, 93)}


def check(marks: set[Mark], data: Data) -> list[str]:
    """What is wrong with the rows; each line says what to do."""
    known = _feature_names() | set(commands())
    shown = {mark.row for mark in marks}
    problems = [f"{m.path}: {m.test}: there is no {m.row}" for m in marks if m.row not in known]
    for row in sorted(known):
        if row in shown and row in data.not_built:
            problems.append(f"{row} has a test: take it out of [not_built] in {DATA.name}")
        if row not in shown and row not in data.not_built:
            problems.append(f"{row} has no test: mark one, or say why in [not_built]")
        if row not in shown and row in data.partly:
            problems.append(f"{row} has no test: [partly] is for rows that have one")
    for name, table in (
        ("features", set(data.features) ^ _feature_names()),
        ("not_built", set(data.not_built) - known),
        ("partly", set(data.partly) - known),
    ):
        problems += [
            f"[{name}] in {DATA.name} does not agree with the rows: {row}" for row in table
        ]
    return sorted(problems)


def page(marks: set[Mark], data: Data) -> str:
    """The page, in Markdown."""
    types = commands()
    lines = [
        "# Compatibility",
        "",
        "What Apache Pulsar's clients can ask for, and the tests that show that Pulsark does it.",
        f"Generated from the markers of the tests by `{WRITE}`; a test fails when it is stale.",
        "",
        "The official Python client's own suite runs with `make test-suite FOLDER=...`, with",
        "`SUITE_ARGS=--cluster` against ZooKeeper and BookKeeper; what cannot pass is in",
        "[tests/clients/official_suite.toml](../tests/clients/official_suite.toml).",
        "",
        "## Commands of the protocol",
        "",
        "| Type | Command | Shown by |",
        "|---|---|---|",
    ]
    lines += [
        f"| {number} | {name} | {_shown(name, marks, data)} |" for name, number in types.items()
    ]
    lines += [
        "",
        "## Features",
        "",
        "| Row | Feature | Shown by |",
        "|---|---|---|",
    ]
    lines += [
        f"| {row} | {wording} | {_shown(row, marks, data)} |"
        for row, wording in data.features.items()
    ]
    return "\n".join(lines) + "\n"


def _shown(row: str, marks: set[Mark], data: Data) -> str:
    if row in data.not_built:
        return f"not built, because {data.not_built[row]}"
    by_path: dict[str, list[str]] = {}
    for mark in sorted(mark for mark in marks if mark.row == row):
        by_path.setdefault(mark.path, []).append(f"`{mark.test}`")
    cells = [
        f"[{path.removeprefix('tests/')}](../{path}): {', '.join(tests)}"
        for path, tests in by_path.items()
    ]
    if row in data.partly:
        cells.append(f"*in part: {data.partly[row]}*")
    return "<br>".join(cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    data = read_data()
    marks, problems = collect(ROOT / "tests")
    problems += check(marks, data)
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    text = page(marks, data)
    if options.write:
        PAGE.write_text(text)
        return 0
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
