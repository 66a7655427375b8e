"""No block of a document is skipped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.reader import Reader
from tests.docs.snippets import code_spans, links, shell_commands, snippets
from tests.support.standalone import Standalone

DOCUMENT = """\
# Title with `pulsark version` and [a link](other.md#there)

```sh
one --flag \\
  two    # why
# nothing else

three
```

<!-- not run: it would take the machine along -->
```sh
rm -rf / `not a span`
```

```fortran
END
```
"""


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document.md"
    path.write_text(DOCUMENT)
    return path


@pytest.fixture
def nobody(tmp_path: Path) -> Reader:
    return Reader(tmp_path, Standalone(tmp_path / "data"), lambda: None)


def test_blocks_have_their_place_language_and_mark(document: Path) -> None:
    found = [(s.place, s.language, s.not_run) for s in snippets(document)]
    assert found == [
        ("document.md:3", "sh", None),
        ("document.md:12", "sh", "it would take the machine along"),
        ("document.md:16", "fortran", None),
    ]


def test_commands_are_lines_without_comments(document: Path) -> None:
    first, *_ = snippets(document)
    assert shell_commands(first) == ["one --flag    two    # why", "three"]


def test_prose_is_what_is_not_in_blocks(document: Path) -> None:
    assert code_spans(document) == ["pulsark version"]
    assert links(document) == ["other.md#there"]


def test_a_language_that_is_not_run_fails(document: Path, nobody: Reader) -> None:
    with pytest.raises(AssertionError, match=r"document\.md:16: a block of 'fortran' is not run"):
        nobody.run(snippets(document)[-1])


def test_an_unknown_make_target_fails(tmp_path: Path, nobody: Reader) -> None:
    path = tmp_path / "make.md"
    path.write_text("```sh\nmake coffee\n```\n")
    with pytest.raises(AssertionError, match="no target coffee"):
        nobody.run(snippets(path)[0])


def test_a_block_without_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "open.md"
    path.write_text("text\n```sh\nls\n")
    with pytest.raises(ValueError, match=r"open\.md:2"):
        snippets(path)
