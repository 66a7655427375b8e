"""Authorization providers: Pulsar's rules over the grants kept here, or a package's own rules.

The ports call ``decided`` first, which answers at once. Only if it returns ``None`` do they await
``decision``.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from pulsark.config.authorization import PULSAR_AUTHORIZATION
from pulsark.errors import ConfigError, near_miss
from pulsark.security.decisions import Decision, Rule, decide
from pulsark.security.facts import Rules
from pulsark.security.known_facts import KnownFacts

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.security.decisions import Target
    from pulsark.security.operations import Operation
    from pulsark.security.principal import Principal

log = logging.getLogger(__name__)

ENTRY_POINTS = "pulsark.authorization"
"""The entry point group for providers of other packages."""


class AuthorizationProvider(Protocol):
    """Decides. Everything that it does not grant is denied, even if it fails."""

    def start(self) -> None:
        """The broker starts: the event loop runs."""

    def close(self) -> None:
        """The broker closes."""

    def decided(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision | None:
        """The decision, if it takes only microseconds; clients wait for it."""

    async def decision(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        """The decision; may read."""


class StoredGrants:
    """Pulsar's rules over the tenants and namespaces of the metadata store."""

    def __init__(self, rules: Rules, metadata: MetadataStore, resources: Resources) -> None:
        self._facts = KnownFacts(rules, metadata, resources)

    def start(self) -> None:
        """Follow the metadata store."""
        self._facts.start()

    def close(self) -> None:
        """Stop following it."""
        self._facts.close()

    def decided(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision | None:
        """The decision, if all facts are in memory."""
        facts = self._facts.of(target)
        return None if facts is None else decide(principal, operation, target, facts)

    async def decision(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        """The decision, after reading the facts."""
        return decide(principal, operation, target, await self._facts.read(target))


class CarefulProvider:
    """A provider of another package. If it fails, the answer is no, and the reason is logged."""

    def __init__(self, provider: AuthorizationProvider) -> None:
        self._provider = provider

    def start(self) -> None:
        """The broker starts."""
        self._provider.start()

    def close(self) -> None:
        """The broker closes."""
        self._provider.close()

    def decided(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision | None:
        """What it decides at once."""
        try:
            return self._provider.decided(principal, operation, target)
        except Exception as error:  # noqa: BLE001 - no error may count as a yes
            return _failed(operation, error)

    async def decision(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        """What it decides."""
        try:
            return await self._provider.decision(principal, operation, target)
        except Exception as error:  # noqa: BLE001 - no error may count as a yes
            return _failed(operation, error)


def _failed(operation: Operation, error: Exception) -> Decision:
    log.warning("the authorization provider failed, so %s is denied: %r", operation, error)
    return Decision(False, Rule.NONE)


def provider_of(
    settings: Settings, metadata: MetadataStore, resources: Resources
) -> AuthorizationProvider:
    """The provider that ``authorizationProvider`` names. Raises ``ConfigError``.

    An entry point is called with the settings and the provider of Pulsar's rules, which it may use.
    """
    stored = StoredGrants(Rules.of(settings), metadata, resources)
    name = settings.authorizationProvider
    if name == PULSAR_AUTHORIZATION:
        return stored
    found = entry_points(group=ENTRY_POINTS)
    for each in found:
        if each.name == name:
            try:
                made: AuthorizationProvider = each.load()(settings, stored)
            except Exception as error:
                raise ConfigError(f"authorizationProvider: {name} failed: {error}") from error
            return CarefulProvider(made)
    raise ConfigError(
        f"authorizationProvider: {name[:200]} is not known"
        f"{near_miss(name, [PULSAR_AUTHORIZATION, *found.names])}; {PULSAR_AUTHORIZATION} is, and "
        f"entry points of the group {ENTRY_POINTS}"
    )
