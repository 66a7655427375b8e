"""Every command and snippet of the documents is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.reader import Reader
from tests.docs.snippets import each_document, snippets


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
