"""Which brokers isolation policies leave for a namespace."""

from __future__ import annotations

from typing import Any

import pytest

from pulsark.dispatch.brokers.isolation import IsolationPolicy, permitted, policies_of
from pulsark.dispatch.brokers.load import LoadReport
from pulsark.limits import ISOLATION_PATTERN_CHARS_MAX, ISOLATION_PATTERNS_MAX

A, B, C = "b0:8080", "b1:8080", "b1:8090"
IDLE = dict.fromkeys((A, B, C), LoadReport())


def data(
    namespaces: list[str],
    primary: list[str],
    secondary: list[str] | None = None,
    min_limit: Any = 1,
    usage_threshold: Any = "100",
) -> dict[str, Any]:
    parameters = {"min_limit": min_limit, "usage_threshold": usage_threshold}
    return {
        "namespaces": namespaces,
        "primary": primary,
        "secondary": secondary or [],
        "auto_failover_policy": {"policy_type": "min_available", "parameters": parameters},
    }


def left(
    namespace: str, stored: dict[str, Any], brokers: dict[str, LoadReport] = IDLE
) -> tuple[set[str], str]:
    return permitted(namespace, brokers, policies_of(stored))


def test_without_policies_all_brokers_are_left() -> None:
    assert left("t/n", {}) == ({A, B, C}, "")


def test_namespaces_go_to_the_primary_brokers_and_others_to_the_rest() -> None:
    stored = {"p": data(["t/.*"], ["b0:8080"])}
    assert left("t/n", stored) == ({A}, "the namespace isolation policy p")
    assert left("tt/n", stored)[0] == {B, C}  # the whole name is matched
    assert left("other/n", stored)[0] == {B, C}


def test_a_broker_is_named_by_its_host_or_with_its_port() -> None:
    assert left("t/n", {"p": data(["t/n"], ["b1"])})[0] == {B, C}
    assert left("t/n", {"p": data(["t/n"], [r"b1:8\d90"])})[0] == {C}


def test_secondary_brokers_are_taken_while_too_few_primary_ones_are_there() -> None:
    stored = {"p": data(["t/n"], [A, B], [C], min_limit="2")}
    assert left("t/n", stored)[0] == {A, B}
    assert left("t/n", stored, {A: LoadReport(), C: LoadReport()})[0] == {A, C}
    assert left("t/n", stored, {C: LoadReport()})[0] == {C}
    assert left("t/n", {"p": data(["t/n"], [A, B], [], min_limit=2)}, {A: LoadReport()})[0] == {A}


def test_a_busy_primary_broker_does_not_count_as_available() -> None:
    stored = {"p": data(["t/n"], [A], [B], usage_threshold="80")}
    assert left("t/n", stored, {**IDLE, A: LoadReport(0.79)})[0] == {A}
    assert left("t/n", stored, {**IDLE, A: LoadReport(0.81)})[0] == {A, B}


def test_where_no_broker_is_left_the_policies_are_named() -> None:
    stored = {"p": data(["t/n"], [A]), "q": data(["u/n"], [B], [C])}
    found, why = left("t/n", stored, {B: LoadReport(), C: LoadReport()})
    assert (found, why) == (set(), "the namespace isolation policy p")
    found, why = left("v/n", stored, {A: LoadReport(), B: LoadReport()})
    assert (found, why) == (set(), "the namespace isolation policies p, q of other namespaces")


def test_the_first_policy_by_name_holds() -> None:
    stored = {"q": data([".*"], [A]), "p": data(["t/n"], [B])}
    assert left("t/n", stored)[0] == {B}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"namespaces": []}, "namespaces must name"),
        ({"primary": None}, "primary must name"),
        ({"namespaces": "t/n"}, "list of regular"),
        ({"secondary": [1]}, "list of regular"),
        ({"primary": ["("]}, r"the pattern \( cannot be evaluated: missing"),
        ({"primary": [r"(a)\1"]}, "cannot be evaluated"),
        ({"primary": ["a" * (ISOLATION_PATTERN_CHARS_MAX + 1)]}, "characters"),
        ({"secondary": ["a"] * (ISOLATION_PATTERNS_MAX + 1)}, "more than"),
        ({"auto_failover_policy": None}, "min_available"),
        ({"auto_failover_policy": {"policy_type": "most"}}, "min_available"),
        ({"auto_failover_policy": {"policy_type": "min_available"}}, "min_limit"),
        ({"unload_scope": "some"}, "unload_scope"),
    ],
)
def test_a_policy_that_says_nonsense_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        policies_of({"p": {**data(["t/n"], [A]), **changed}})


@pytest.mark.parametrize("limit", ["-1", "x", None, True, "1.5", "101"])
def test_limits_are_numbers(limit: Any) -> None:
    with pytest.raises(ValueError, match="usage_threshold"):
        IsolationPolicy.of("p", data(["t/n"], [A], usage_threshold=limit))


def test_all_patterns_together_are_bounded() -> None:
    half = [A] * (ISOLATION_PATTERNS_MAX // 2)
    assert len(policies_of({"p": data(["t/n"], half[:-1])})) == 1
    with pytest.raises(ValueError, match="at most"):
        policies_of({"p": data(["t/n"], half), "q": data(["t/n"], half)})
