"""The facts of decisions: settings, a tenant's administrators, a namespace's grants. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.security import grants
from pulsark.security.grants import SUBSCRIPTION_AUTH_MODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.config.settings import Settings

_NOTHING: frozenset[str] = frozenset()


class Rules(NamedTuple):
    """The broker's settings for authorization."""

    super_users: frozenset[str] = _NOTHING
    proxies: frozenset[str] = _NOTHING
    """Roles that act for other roles."""
    wildcards: bool = False
    """Whether ``*`` at the start or end of a granted role matches anything."""

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """The rules of a broker's settings."""
        return cls(
            frozenset(settings.superUserRoles),
            frozenset(settings.proxyRoles),
            settings.authorizationAllowWildcardsMatching,
        )


class Granted:
    """The actions granted to each role, on a namespace or a topic."""

    __slots__ = ("_by_begin", "_by_end", "_by_role")

    def __init__(self, actions: Mapping[str, Iterable[str]]) -> None:
        self._by_role = {role: frozenset(given) for role, given in actions.items()}
        # A look-up per length of the role is cheaper than a comparison with each pattern.
        self._by_begin = {r[:-1]: given for r, given in self._by_role.items() if r[-1:] == "*"}
        self._by_end = {r[1:]: given for r, given in self._by_role.items() if r[:1] == "*"}

    def gives(self, role: str, actions: frozenset[str]) -> bool:
        """Whether exactly this role was granted one of the actions."""
        given = self._by_role.get(role)
        return given is not None and not actions.isdisjoint(given)

    def gives_by_pattern(self, role: str, actions: frozenset[str]) -> bool:
        """Whether a pattern that matches the role was granted one of the actions."""
        if self._by_begin:
            for end in range(len(role) + 1):
                given = self._by_begin.get(role[:end])
                if given is not None and not actions.isdisjoint(given):
                    return True
        if self._by_end:
            for start in range(len(role) + 1):
                given = self._by_end.get(role[start:])
                if given is not None and not actions.isdisjoint(given):
                    return True
        return False


class Grants:
    """The grants in a namespace's policies."""

    __slots__ = ("_on_topics", "_read", "namespace", "prefix", "size", "subscriptions")

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self.namespace = Granted(grants.granted(policies, grants.NAMESPACE))
        self.subscriptions = {
            name: frozenset(roles)
            for name, roles in grants.granted(policies, grants.SUBSCRIPTIONS).items()
            if roles
        }
        """The roles that may use subscriptions of a name, for restricted names."""
        self.prefix = policies.get(SUBSCRIPTION_AUTH_MODE) == "Prefix"
        """Whether a subscription's name must begin with the role that uses it."""
        self.size = grants.count(policies)
        self._on_topics: dict[str, Any] = grants.granted(policies, grants.TOPICS)
        self._read: dict[str, Granted] = {}

    def on_topic(self, topic: str) -> Granted | None:
        """The grants on a topic, by its name without partition."""
        found = self._read.get(topic)
        if found is None and topic in self._on_topics:
            found = self._read[topic] = Granted(self._on_topics[topic])
        return found


class Facts(NamedTuple):
    """The facts about a target."""

    rules: Rules
    admins: frozenset[str] | None = None
    """The administrators of the tenant; ``None`` if it does not exist."""
    grants: Grants | None = None
    """The grants of the namespace; ``None`` if it does not exist or the target has none."""
