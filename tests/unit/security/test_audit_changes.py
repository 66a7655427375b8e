"""What an event says of changed values: the parts that differ, and never too much."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.security.audit.changes import AuditedChanges, difference
from pulsark.security.audit.limits import AUDIT_BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 2}, {"b": 3}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {}}),
        ({}, {"a": [1]}, {}, {"a": [1]}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1, 2]}, {"a": [1]}),
        ({"a": {"x": 1}}, {"a": 5}, {"a": {"x": 1}}, {"a": 5}),
        ({"a": 1}, {"a": 1}, {}, {}),
        ({"a": 1}, None, {"a": 1}, None),
        (None, {"a": 1}, None, {"a": 1}),
    ],
)
def test_only_what_differs_is_shown(
    old: object, new: object, before: object, after: object
) -> None:
    assert difference(old, new) == (before, after)


def test_several_changes_are_a_list() -> None:
    changes = AuditedChanges()
    assert (changes.before, changes.after) == ("", "")
    changes.add({"a": 1}, {"a": 2})
    changes.add(None, {"b": 3})
    assert json.loads(changes.before) == {"a": 1}
    assert json.loads(changes.after) == [{"a": 2}, {"b": 3}]


def test_of_large_and_many_changes_only_the_begin_is_kept() -> None:
    changes = AuditedChanges()
    changes.add({"a": "x" * 100_000}, {"a": "y" * 100_000})
    for number in range(10_000):
        changes.add({}, {"b": number})
    for text in (changes.before, changes.after):
        assert len(text) == AUDIT_BODY_BYTES_MAX + 3
        assert text.endswith("...")
    many = AuditedChanges()
    for number in range(100_000):
        many.add({"a": number}, {"a": -number})
    assert len(many._before) < AUDIT_BODY_BYTES_MAX


PROPERTIES = st.dictionaries(st.sampled_from(["team", "password"]), st.just("secret"), max_size=2)
VALUES = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
        | st.builds(lambda value, found: {"c": value, "properties": found}, inner, PROPERTIES)
    ),
    max_leaves=6,
)


@given(VALUES, VALUES)
def test_of_properties_only_the_names_are_noted_wherever_they_are(old: Any, new: Any) -> None:
    changes = AuditedChanges()
    changes.add(old, new)
    before, after = difference(old, new)
    for text, part in ((changes.before, before), (changes.after, after)):
        assert "secret" not in text
        names = json.dumps(part).replace('"secret"', '"..."')
        assert (json.loads(text) if text else None) == json.loads(names)
