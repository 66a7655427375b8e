"""What a decision is based on: settings, a tenant's administrators, a namespace's grants. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pulsark.security import grants
from pulsark.security.grants import SUBSCRIPTION_AUTH_MODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pulsark.config.settings import Settings

_NOTHING: frozenset[str] = frozenset()


class Rules(NamedTuple):
    """What the broker's settings say."""

    super_users: frozenset[str] = _NOTHING
    proxies: frozenset[str] = _NOTHING
    """Roles that ask for others."""
    wildcards: bool = False
    """Whether ``*`` at the begin or end of a granted role stands for anything."""

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        """Those of a broker."""
        return cls(
            frozenset(settings.superUserRoles),
            frozenset(settings.proxyRoles),
            settings.authorizationAllowWildcardsMatching,
        )


class Granted:
    """The actions that were granted to each role, on a namespace or on a topic."""

    __slots__ = ("_by_begin", "_by_end", "_by_role")

    def __init__(self, actions: Mapping[str, Iterable[str]]) -> None:
        self._by_role = {role: frozenset(given) for role, given in actions.items()}
        # A look-up for each length of the caller's role costs less than a look at each pattern.
        self._by_begin = {r[:-1]: given for r, given in self._by_role.items() if r[-1:] == "*"}
        self._by_end = {r[1:]: given for r, given in self._by_role.items() if r[:1] == "*"}

    def gives(self, role: str, actions: frozenset[str]) -> bool:
        """Whether exactly this role was granted one of the actions."""
        given = self._by_role.get(role)
        return given is not None and not actions.isdisjoint(given)

    def gives_by_pattern(self, role: str, actions: frozenset[str]) -> bool:
        """Whether a pattern that fits the role was granted one of the actions."""
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
    """What a namespace's policies grant."""

    __slots__ = ("_on_topics", "_read", "namespace", "prefix", "size", "subscriptions")

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self.namespace = Granted(grants.granted(policies, grants.NAMESPACE))
        self.subscriptions = {
            name: frozenset(roles)
            for name, roles in grants.granted(policies, grants.SUBSCRIPTIONS).items()
            if roles
        }
        """The roles that may use the subscriptions of a name, where only some may."""
        self.prefix = policies.get(SUBSCRIPTION_AUTH_MODE) == "Prefix"
        """Whether the name of a subscription begins with the role that uses it."""
        self.size = grants.count(policies)
        self._on_topics: dict[str, Any] = grants.granted(policies, grants.TOPICS)
        self._read: dict[str, Granted] = {}

    def on_topic(self, topic: str) -> Granted | None:
        """What was granted on a topic, by the name that it has without a partition."""
        found = self._read.get(topic)
        if found is None and topic in self._on_topics:
            found = self._read[topic] = Granted(self._on_topics[topic])
        return found


class Facts(NamedTuple):
    """What is known of a target."""

    rules: Rules
    admins: frozenset[str] | None = None
    """The administrators of the tenant; ``None`` if there is no such tenant."""
    grants: Grants | None = None
    """Of the namespace; ``None`` if there is none, or none is asked about."""
