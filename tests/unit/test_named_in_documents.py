"""What the documents name exists, and they are as short as they promise."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from tests.docs.reader import MAKE_TARGETS
from tests.docs.snippets import ROOT, TOP, code_spans, each_document, links, snippets
from tests.docs.usage import check_usage

PLACES = (ROOT, ROOT / "pulsark", ROOT / "conf")
"""Where a file that a sentence names may be."""


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


@pytest.mark.parametrize("document", TOP, ids=lambda path: path.name)
def test_files_and_names_in_sentences_exist(document: Path) -> None:
    for span in code_spans(document):
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
    assert len(text.splitlines()) <= 160
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
