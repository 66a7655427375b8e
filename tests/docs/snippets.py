"""What a Markdown file asks its reader to run: fenced blocks, and commands within sentences."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

_FENCE = re.compile(r"^(\s*)```(.*)$")
_NOT_RUN = re.compile(r"^<!-- not run: (.+\S) -->$")
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

ROOT = Path(__file__).parents[2]
TOP = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")]
DOCUMENTS = [*TOP, *sorted((ROOT / "docs").rglob("*.md"))]

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


class Snippet(NamedTuple):
    """A fenced block. ``line`` is that of its opening fence, from 1."""

    document: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """Why it is not run, if a comment right above it says so."""

    @property
    def place(self) -> str:
        """``FILE:LINE`` for messages."""
        return f"{self.document.name}:{self.line}"


def snippets(document: Path) -> list[Snippet]:
    """All fenced blocks of a document, in order."""
    found: list[Snippet] = []
    above, opened = "", None
    for number, line in enumerate(document.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is not None:
            if fence is None:
                opened[1].append(line)
                continue
            start, body, language, reason = opened
            found.append(Snippet(document, start, language, "\n".join(body), reason))
            opened, above = None, ""
        elif fence is not None:
            marked = _NOT_RUN.match(above)
            opened = (number, list[str](), fence[2].strip(), marked[1] if marked else None)
        elif line.strip():
            above = line.strip()
    if opened is not None:
        raise ValueError(f"{document}:{opened[0]}: this block has no end")
    return found


def code_spans(document: Path) -> list[str]:
    """What stands between single backticks, outside of fenced blocks."""
    return _SPAN.findall(_prose(document))


def links(document: Path) -> list[str]:
    """Targets of links, outside of fenced blocks."""
    return _LINK.findall(_prose(document))


def shell_commands(snippet: Snippet) -> list[str]:
    """The commands of a shell block: one a line, continued by a backslash at its end."""
    joined = snippet.text.replace("\\\n", " ")
    lines = (line.strip() for line in joined.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _prose(document: Path) -> str:
    return re.sub(r"^\s*```.*?^\s*```\s*$", "", document.read_text(), flags=re.M | re.S)
