"""Namespaces that only some brokers may have: Pulsar's isolation policies. Pure.

A policy names namespaces and brokers by regular expressions. Its namespaces go to its primary
brokers, and to the secondary ones as well while too few primary ones are available. A primary
broker of any policy gets only namespaces of policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.limits import ISOLATION_PATTERN_CHARS_MAX, ISOLATION_PATTERNS_MAX
from pulsark.patterns import full_matcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pulsark.dispatch.brokers.load import LoadReport

MIN_AVAILABLE = "min_available"
"""The only type of failover, as in Pulsar."""

LISTS = ("namespaces", "primary", "secondary")
"""The fields of a policy that have regular expressions."""

UNLOAD_SCOPES = ("all_matching", "none", "changed")


@dataclass(frozen=True, slots=True)
class Patterns:
    """Regular expressions, each of which must match a whole text."""

    texts: tuple[str, ...]
    _matchers: tuple[Callable[[bytes], Any], ...]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Patterns:
        """Raises ``ValueError`` if one cannot be evaluated."""
        return cls(tuple(texts), tuple(_matcher(text) for text in texts))

    def match(self, *texts: str) -> bool:
        """Whether one of them matches one of the texts."""
        encoded = [text.encode() for text in texts]
        return any(matches(text) is not None for matches in self._matchers for text in encoded)


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """One policy."""

    name: str
    namespaces: Patterns
    primary: Patterns
    secondary: Patterns
    min_limit: int
    """With fewer available primary brokers, the secondary ones are used, too."""
    usage_threshold: int
    """A primary broker that is at least this busy, in percent, does not count as available."""
    moves: bool = True
    """Whether bundles at other brokers are moved when the policy is set."""

    @classmethod
    def of(cls, name: str, data: Mapping[str, Any]) -> IsolationPolicy:
        """Parse the JSON of Pulsar's admin API. ``ValueError`` names the field and the fault."""
        lists = {key: _texts(data, key) for key in LISTS}
        for key in ("namespaces", "primary"):
            if not lists[key]:
                raise ValueError(f"{key} must name at least one")
        failover = data.get("auto_failover_policy")
        if not isinstance(failover, dict) or failover.get("policy_type") != MIN_AVAILABLE:
            raise ValueError(f"auto_failover_policy must be of the policy_type {MIN_AVAILABLE}")
        parameters = failover.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        scope = data.get("unload_scope")
        if scope is not None and scope not in UNLOAD_SCOPES:
            raise ValueError(f"unload_scope must be one of {', '.join(UNLOAD_SCOPES)}")
        return cls(
            name,
            Patterns.of(lists["namespaces"]),
            Patterns.of(lists["primary"]),
            Patterns.of(lists["secondary"]),
            _number(parameters, "min_limit", 1_000_000),
            _number(parameters, "usage_threshold", 100),
            scope != "none",
        )

    def has_primary(self, broker_id: str) -> bool:
        """Whether a broker is a primary one, by its ``host:port`` or its host."""
        return self.primary.match(*_names_of(broker_id))

    def has_secondary(self, broker_id: str) -> bool:
        """Whether a broker is a secondary one and not a primary one."""
        names = _names_of(broker_id)
        return not self.primary.match(*names) and self.secondary.match(*names)

    def permitted(self, brokers: Mapping[str, LoadReport]) -> set[str]:
        """The brokers that may have its namespaces."""
        primary = {each for each in brokers if self.has_primary(each)}
        busy = self.usage_threshold / 100
        available = [each for each in primary if not 0 < busy <= brokers[each].utilisation]
        if len(available) >= max(self.min_limit, 1):
            return primary
        return primary | {each for each in brokers if self.has_secondary(each)}


def policies_of(stored: Mapping[str, Mapping[str, Any]]) -> tuple[IsolationPolicy, ...]:
    """Parse the policies of a cluster, ordered by name. Raises ``ValueError``."""
    patterns = sum(len(_texts(each, key)) for each in stored.values() for key in LISTS)
    if patterns > ISOLATION_PATTERNS_MAX:
        raise ValueError(
            f"all isolation policies of a cluster have at most {ISOLATION_PATTERNS_MAX} patterns"
        )
    return tuple(IsolationPolicy.of(name, stored[name]) for name in sorted(stored))


def policy_for(namespace: str, policies: Iterable[IsolationPolicy]) -> IsolationPolicy | None:
    """The policy that applies to a namespace: the first by name, if several match."""
    return next((each for each in policies if each.namespaces.match(namespace)), None)


def permitted(
    namespace: str, brokers: Mapping[str, LoadReport], policies: Sequence[IsolationPolicy]
) -> tuple[set[str], str]:
    """The brokers that may have bundles of a namespace, and the reason in words."""
    if not policies:
        return set(brokers), ""
    policy = policy_for(namespace, policies)
    if policy is not None:
        return policy.permitted(brokers), f"the namespace isolation policy {policy.name}"
    taken = [each.name for each in policies if any(map(each.has_primary, brokers))]
    shared = {b for b in brokers if not any(each.has_primary(b) for each in policies)}
    words = "policy" if len(taken) == 1 else "policies"
    return shared, f"the namespace isolation {words} {', '.join(taken)[:500]} of other namespaces"


def may_ever_have(broker_id: str, namespace: str, policies: Sequence[IsolationPolicy]) -> bool:
    """Whether a broker may have bundles of a namespace, if the others fail or are busy.

    Unlike ``permitted``, brokers agree on this that see the others differently.
    """
    policy = policy_for(namespace, policies)
    if policy is not None:
        return policy.has_primary(broker_id) or policy.has_secondary(broker_id)
    return not any(each.has_primary(broker_id) for each in policies)


def _names_of(broker_id: str) -> tuple[str, str]:
    return broker_id, broker_id.rpartition(":")[0]


def _matcher(text: str) -> Callable[[bytes], Any]:
    if len(text) > ISOLATION_PATTERN_CHARS_MAX:
        raise ValueError(f"a pattern has at most {ISOLATION_PATTERN_CHARS_MAX} characters")
    try:
        return full_matcher(text)
    except ValueError as error:
        raise ValueError(f"the pattern {text[:100]} cannot be evaluated: {error}") from error


def _texts(data: Mapping[str, Any], key: str) -> list[str]:
    found = data.get(key)
    found = [] if found is None else found
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise ValueError(f"{key} must be a list of regular expressions")
    if len(found) > ISOLATION_PATTERNS_MAX:
        raise ValueError(f"{key} has more than {ISOLATION_PATTERNS_MAX} patterns")
    return found


def _number(parameters: Mapping[str, Any], key: str, most: int) -> int:
    """A whole number, which Pulsar's tools send as text."""
    found = parameters.get(key)
    if isinstance(found, bool) or not isinstance(found, (str, int)):
        raise ValueError(f"the parameters of auto_failover_policy must have {key}")
    text = str(found)
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > most:
        raise ValueError(f"{key} must be a whole number from 0 to {most}")
    return int(text)
