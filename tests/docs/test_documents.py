"""Every command and snippet of the documents is run; what they name exists."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from pulsark.cli.app import app
from pulsark.cli.broker import broker_parser, cluster_parser
from pulsark.cli.standalone import parser as standalone_parser
from tests.docs.reader import MAKE_TARGETS, ROOT, Reader
from tests.docs.snippets import code_spans, links, snippets

NAMES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
TOP = [ROOT / name for name in NAMES]
DOCUMENTS = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]

PLACES = (ROOT, ROOT / "pulsark", ROOT / "conf")
"""Where a file that a sentence names may be."""

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@each_document
@pytest.mark.timeout(900)
def test_every_snippet_runs(document: Path, reader: Reader) -> None:
    for snippet in snippets(document):
        if snippet.not_run is None:
            reader.run(snippet)
    reader.leave()
    for words in EXPECTED.get(document.name, ()):
        assert words in reader.output, reader.output


EXPECTED = {
    "README.md": (
        "is ready",
        "hello\nworld\n",
        "my-sub ",
        "b'one espresso' table-7",
        "/table/public/default/",
        "ledger_id",
    ),
    "operations.md": (
        "backup of ",
        "restored the state of ",
        "Nothing is wrong here.",
    ),
    "cluster.md": ("is ready",),
    "scaling.md": ("  broker 0 ", "  broker 3 "),
    "security.md": (
        "this machine, with a login",
        "one espresso",
        "received b'one filter'",
        "not authorized",
        "401: Authentication required",
        "does it take this login",
        "it was granted on the namespace",
        "Nothing is wide open.",
        " 0 problems",
        "denied: kitchen topic ",
        "granted: admin cafe/shop {} ",
    ),
    "spark.md": (
        "key='table-7'",
        "ledger_id",
        "key='table-8', value='one espresso'",
        "over Spark Connect",
    ),
}
"""What a reader of the document must have seen."""


def test_the_readme_is_for_narrow_terminals() -> None:
    for snippet in snippets(ROOT / "README.md"):
        wide = [line for line in snippet.text.splitlines() if len(line) > 80]
        assert not wide, f"{snippet.place}: {wide}"


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for target in links(document):
        path, _, _ = target.partition("#")
        if path and "://" not in path:
            assert (document.parent / path).exists(), f"{document.name}: {target}"


@each_document
def test_commands_in_sentences_exist(document: Path) -> None:
    for span in code_spans(document):
        words = shlex.split(span) if span.count("'") % 2 == 0 else span.split()
        match words:
            case ["make", target, *_]:
                assert target in MAKE_TARGETS, span
            case ["pulsark" | ".venv/bin/pulsark", *arguments] if arguments:
                check_usage(span, arguments)
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module) is not None, span


SERVING = {
    "standalone": standalone_parser,
    "broker": broker_parser,
    "cluster": cluster_parser,
}
"""Commands that read their options by themselves."""


def check_usage(span: str, arguments: list[str]) -> None:
    """Fail unless the subcommand and all its options are known."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        assert name in command.commands, span
        command = command.commands[name]
    if command.name in SERVING:
        known = set(re.findall(r"--[\w-]+", SERVING[command.name]().format_help()))
    else:
        known = {option for parameter in command.params for option in parameter.opts}
    used = {word.partition("=")[0] for word in arguments if word.startswith("-")}
    assert used <= known | {"-h", "--help"}, span


@pytest.mark.parametrize("name", NAMES)
def test_files_and_names_in_sentences_exist(name: str) -> None:
    for span in code_spans(ROOT / name):
        if re.fullmatch(r"[\w*-][\w./*-]*(/[\w.*-]*|\.(py|md|conf|toml))", span):
            places = [place.glob(span.rstrip("/")) for place in PLACES]
            assert any(any(found) for found in places), span
        elif re.fullmatch(r"([a-z_]+\.)+[A-Z]\w+", span):
            assert pkgutil.resolve_name(f"pulsark.{span}"), span


@each_document
def test_tests_in_sentences_exist(document: Path) -> None:
    for span in code_spans(document):
        path, _, name = span.partition("::")
        if path.startswith("tests/") and name:
            assert f"def {name}(" in (ROOT / path).read_text(), span


def test_the_architecture_is_short_and_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 150
    packages = {path.parent.name for path in (ROOT / "pulsark").glob("*/__init__.py")}
    assert {p for p in packages if f"`{p}/" not in text} == set()


def test_each_question_of_a_contributor_is_answered_by_one_path() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| ([^|]*\?) \| ([^|]*) \|$", text, re.M)
    assert len(rows) >= 10
    for question, answer in rows:
        (path,) = re.findall(r"`([^`]*)`", answer)
        assert (ROOT / path).is_file(), question


def test_a_paragraph_of_the_architecture_names_at_most_five_files() -> None:
    for paragraph in (ROOT / "ARCHITECTURE.md").read_text().split("\n\n"):
        if not paragraph.startswith(("|", "- ")):
            assert len(re.findall(r"`[\w/]+(?:\.py|/)`", paragraph)) <= 5, paragraph
