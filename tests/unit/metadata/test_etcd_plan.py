"""Commits as transactions of etcd, and where its keys are."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pulsark.errors import BadVersionError, CorruptMetadataError, MetadataRefusedError
from pulsark.limits import METADATA_COMMIT_CHANGES_MAX
from pulsark.metadata import paths
from pulsark.metadata.based_values import decode
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.etcd import messages, plan
from pulsark.metadata.etcd.layout import PARTS, Layout, behind, child_of, part_of
from pulsark.metadata.etcd.marks import Marks
from pulsark.metadata.etcd.messages import KeyValue
from pulsark.metadata.etcd.plan import Facts, Present, problem, read_value
from pulsark.metadata.history import NO_MARK
from pulsark.metadata.store import ABSENT, ANY_VERSION

LAYOUT = Layout("/root")
LEASE = 77
OPERATIONS_MAX = 128
"""etcd's default of ``--max-txn-ops``."""
OWN_COMPARES = 2
"""The history, and the session's key."""


def test_the_largest_commit_is_one_that_etcd_takes_without_a_setting() -> None:
    paths_of_all_parts = [
        f"{paths.MANAGED_LEDGERS}/{n}" for n in range(METADATA_COMMIT_CHANGES_MAX)
    ]
    assert {part_of(path) for path in paths_of_all_parts} == set(range(PARTS))
    creating = [Put(path, b"", ABSENT, ephemeral=True) for path in paths_of_all_parts]
    made = plan.plan(creating, {}, {}, LAYOUT, LEASE)
    assert len(made.compares) + OWN_COMPARES <= OPERATIONS_MAX
    assert len(made.operations) <= OPERATIONS_MAX
    assert METADATA_COMMIT_CHANGES_MAX + PARTS + OWN_COMPARES <= OPERATIONS_MAX, "what is read"


def planned(change: Change, facts: Facts) -> plan.Plan:
    found = {change.path: facts.of(change.path)}
    return plan.plan([change], found, facts.parts, LAYOUT, LEASE)


def test_a_version_is_above_all_that_the_path_had() -> None:
    """Whoever deletes it, and though etcd counts from 1 again."""
    facts = Facts()
    versions: list[int] = []
    revision = 10
    for ephemeral in (False, True, False):
        for _ in range(3):
            put = Put("/a", b"", ANY_VERSION, ephemeral)
            assert problem(put, facts.of("/a"), LEASE) is None
            made = planned(put, facts)
            revision += 1
            made.succeeded(revision, facts)
            versions += made.versions
            fact = facts.of("/a")
            assert fact is not None
            assert fact.version == versions[-1] < revision
        if ephemeral:
            facts.learn("/a", None)  # its session has ended, and nobody has told
        else:
            made = planned(Delete("/a", versions[-1]), facts)
            revision += 5
            made.succeeded(revision, facts)
    assert versions[:3] == [0, 1, 2]
    assert versions == sorted(set(versions))


def test_a_value_is_written_with_its_base_and_lease_and_only_if_nothing_has_changed() -> None:
    parts = {part_of("/a"): 40}
    made = plan.plan([Put("/a", b"x", ABSENT, ephemeral=True)], {}, parts, LAYOUT, LEASE)
    key, part = LAYOUT.key("/a"), LAYOUT.deletions(part_of("/a"))
    assert made.compares == [messages.is_at(key, 0), messages.is_at(part, 40)]
    stored = messages.key_value({**made.operations[0]["request_put"]})
    assert (stored.key, stored.lease) == (key, LEASE)
    value = decode("/a", stored.value)
    assert value is not None
    assert (value.value, value.base) == (b"x", 40)
    assert made.operations[1:] == [messages.put(part, b"")]
    facts = {"/a": Present(50, 52, 3, 40, 0)}
    made = plan.plan([Put("/a", b"y"), Check("/b", ABSENT)], facts, parts, LAYOUT, LEASE)
    assert made.compares == [messages.is_at(key, 52), messages.is_at(LAYOUT.key("/b"), 0)]
    assert made.versions == [43, ABSENT]
    assert len(made.operations) == 1


@pytest.mark.parametrize(
    ("change", "fact", "error"),
    [
        (Put("/a", b"", ABSENT), None, None),
        (Put("/a", b"", 42), Present(50, 52, 3, 40, 0), None),
        (Put("/a", b"", 41), Present(50, 52, 3, 40, 0), BadVersionError),
        (Put("/a", b"", ABSENT), Present(50, 52, 3, 40, 0), BadVersionError),
        (Put("/a", b"", 0), None, BadVersionError),
        (Put("/a", b""), Present(50, 52, 3, 40, LEASE), MetadataRefusedError),
        (Put("/a", b"", ephemeral=True), Present(50, 52, 3, 40, 0), MetadataRefusedError),
        (Put("/a", b"", ephemeral=True), Present(50, 52, 3, 40, 78), MetadataRefusedError),
        (Put("/a", b"", ephemeral=True), Present(50, 52, 3, 40, LEASE), None),
        (Delete("/a"), None, BadVersionError),
        (Delete("/a"), Present(50, 52, 3, 40, 78), None),
        (Check("/a", 42), Present(50, 52, 3, 40, 78), None),
        (Check("/a", 42), None, BadVersionError),
    ],
)
def test_what_is_refused_by_what_is_stored(
    change: Change, fact: Present | None, error: type[Exception] | None
) -> None:
    found = problem(change, fact, LEASE)
    assert type(found) is (error or type(None))


def test_facts_are_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FACTS_MAX", 3)
    facts = Facts()
    for path in "abcad":
        facts.learn(path, None)
    assert [facts.knows(path) for path in "abcd"] == [True, False, True, True]


def test_descendants_stand_behind_their_parent_and_before_any_other_name() -> None:
    (parent,) = LAYOUT.parents("/t")
    names = ["a", "a-x", "a b", "é", "\x01", "a\U0001f600"]
    keys = sorted(
        LAYOUT.key(f"/t/{name}{rest}") for name in names for rest in ("", "/z/y", "/\x01")
    )
    assert all(key.startswith(parent) and key < messages.after(parent) for key in keys)
    met = list(dict.fromkeys(child_of(parent, key) for key in keys))
    assert met == sorted(names)
    assert [child_of(parent, key) for key in keys] == [name for name in met for _ in range(3)]
    for name, following in pairwise(met):
        rest = [key for key in keys if key >= behind(parent, name)]
        assert child_of(parent, rest[0]) == following


def test_what_is_told_and_what_is_quiet_are_apart() -> None:
    told = LAYOUT.key("/admin/a b/é")
    assert LAYOUT.told_path(told) == "/admin/a b/é"
    quiet = LAYOUT.key(paths.ledger_path(3))
    assert not quiet.startswith(LAYOUT.told)
    for key in (quiet, LAYOUT.history, LAYOUT.appeared):
        assert LAYOUT.told_path(key) is None
    assert LAYOUT.history < told < messages.after(LAYOUT.told)
    assert len(LAYOUT.parents("/")) == 2
    assert len(LAYOUT.parents(paths.LEDGERS)) == len(LAYOUT.parents("/admin")) == 1


def test_what_pulsark_has_not_written_is_damage() -> None:
    for data in (b"", b"x", b"1 0 00000000\nx"):
        with pytest.raises(CorruptMetadataError):
            read_value("/a", KeyValue(LAYOUT.key("/a"), data, 5, 5, 1, 0))


def test_marks_rise_over_sessions_and_those_of_a_lost_time_are_not_known() -> None:
    one = Marks()
    one.learn(b"", 3)
    first = one.begun(5, ())
    one.learn(first, 4)
    one.reached(9)
    marks = [one.mark]
    two = Marks()
    two.learn(first, 4)
    two.reached(10)
    second = two.begun(6, ())
    two.learn(second, 11)
    assert two.knows(marks[0])
    one.learn(second, 11)  # as its watch tells it, before it hears of anything later
    one.learn(first, 4)  # late
    assert one.mark == two.mark > marks[0]
    assert one.knows(NO_MARK)
    gone_back = Marks()
    gone_back.learn(first, 4)
    gone_back.reached(20)
    assert not gone_back.knows(two.mark)
    with pytest.raises(CorruptMetadataError):
        one.learn(b"{}", 30)
