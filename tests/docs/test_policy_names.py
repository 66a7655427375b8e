"""``docs/policies.md`` names every policy, and says of each whether it is there."""

from __future__ import annotations

import re

from pulsark.admin.pulsar.policy_table import NAMESPACE_POLICIES, TOPIC_POLICIES
from tests.docs.reader import ROOT

BUILT, NOT_BUILT = (ROOT / "docs" / "policies.md").read_text().split("## Not implemented yet")
QUOTAS = {"backlogQuota", "backlogQuotaMap"}


def names(text: str) -> set[str]:
    return set(re.findall(r"`([\w/]+)`", text))


def test_the_policies_that_are_there() -> None:
    rows = [line.split("|")[2:4] for line in BUILT.splitlines() if line.startswith("| ")][1:]
    for column, table in enumerate((NAMESPACE_POLICIES, TOPIC_POLICIES)):
        found = set().union(*(names(row[column]) for row in rows))
        assert found == {n for n, (policy, _) in table.items() if policy.key} | QUOTAS


def test_the_policies_that_are_not_there() -> None:
    namespaces, topics = NOT_BUILT.split("- at topics")
    for text, table in ((namespaces, NAMESPACE_POLICIES), (topics, TOPIC_POLICIES)):
        listed = names(text.partition("- at namespaces")[2] or text)
        assert listed == {n for n, (policy, _) in table.items() if not policy.key}
