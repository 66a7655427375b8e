"""Java's properties syntax."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.config.sources import parse_properties


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a: 1\nb 2\nc\t=\t3", {"a": "1", "b": "2", "c": "3"}),
        ("# no\n! no\n\n  \n  # no\na=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=", {"a": ""}),
        ("a", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=x#y", {"a": "x#y"}),
        ("a=1,\\\n   2,\\\r\n   3", {"a": "1,2,3"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=x\\\n# not a comment", {"a": "x# not a comment"}),
        ("a\\=b\\ c=\\u0041\\t\\q", {"a=b c": "A\tq"}),
        ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\\", {"a": "1"}),
    ],
)
def test_pairs(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


def escape(text: str, *, key: bool) -> str:
    table = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    special = "=: #!" if key else " "
    out = []
    for i, char in enumerate(text):
        if char in table:
            out.append(table[char])
        elif char in special and (key or i == 0):
            out.append("\\" + char)
        else:
            out.append(char)
    return "".join(out)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(words.filter(bool), words, max_size=5))
def test_what_is_escaped_comes_back(pairs: dict[str, str]) -> None:
    text = "\n".join(f"{escape(k, key=True)}={escape(v, key=False)}" for k, v in pairs.items())
    assert parse_properties(text) == pairs


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    parse_properties(text)
