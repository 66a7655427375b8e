"""Who decides: Pulsar's rules, or somebody's own."""

from __future__ import annotations

import asyncio
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.metadata.memory import MemoryMetadataStore
from pulsark.metadata.resources import Resources, Tenant
from pulsark.runtime import Runtime
from pulsark.security import authorization
from pulsark.security.authorization import AuthorizationProvider, StoredGrants, provider_of
from pulsark.security.decisions import Decision, Rule, Target
from pulsark.security.operations import GeneralOperation, NamespaceOperation, Operation
from pulsark.security.principal import Principal

WEB = Target.of_namespace("acme/web")
ROOT, BOSS, STRANGER = Principal("root"), Principal("boss"), Principal("stranger")


class Own:
    """Lets nobody in but whom Pulsar's rules do, and strangers to lists of topics."""

    def __init__(self, settings: Settings, stored: AuthorizationProvider) -> None:
        self.stored = stored

    def start(self) -> None:
        self.stored.start()

    def close(self) -> None:
        self.stored.close()

    def decided(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision | None:
        if operation is GeneralOperation.LOGIN:
            raise RuntimeError("no idea")
        if operation is NamespaceOperation.GET_TOPICS:
            return Decision(True, Rule.LOGIN)
        return self.stored.decided(principal, operation, target)

    async def decision(
        self, principal: Principal | None, operation: Operation, target: Target
    ) -> Decision:
        if operation is NamespaceOperation.GET_BUNDLE:
            raise RuntimeError("no idea either")
        return await self.stored.decision(principal, operation, target)


def broken(settings: Settings, stored: AuthorizationProvider) -> None:
    raise ValueError("a file is missing")


def made(name: str | None = None, **changed: Any) -> tuple[AuthorizationProvider, Resources]:
    settings = Settings(superUserRoles=("root",), **changed)
    if name is not None:
        settings = Settings(superUserRoles=("root",), authorizationProvider=name, **changed)
    store = MemoryMetadataStore()
    resources = Resources(store, Runtime())
    return provider_of(settings, store, resources), resources


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}"
    points = EntryPoints(
        EntryPoint(name, f"{here}:{what}", authorization.ENTRY_POINTS)
        for name, what in (("own", "Own"), ("broken", "broken"))
    )
    found = {"own": Own, "broken": broken}
    monkeypatch.setattr(EntryPoint, "load", lambda point: found[point.name])
    monkeypatch.setattr(authorization, "entry_points", lambda group: points)


def test_pulsars_rules_decide_by_default() -> None:
    async def ask() -> None:
        provider, resources = made()
        assert isinstance(provider, StoredGrants)
        await resources.tenants.create("acme", Tenant(("boss",)))
        provider.start()
        assert provider.decided(BOSS, NamespaceOperation.GET_TOPICS, WEB) is None
        decision = await provider.decision(BOSS, NamespaceOperation.GET_TOPICS, WEB)
        assert decision == (True, Rule.TENANT_ADMIN)
        await asyncio.sleep(0)
        assert provider.decided(BOSS, NamespaceOperation.GET_TOPICS, WEB) == decision
        assert provider.decided(STRANGER, NamespaceOperation.GET_TOPICS, WEB) == (False, Rule.NONE)
        provider.close()

    asyncio.run(ask())


@pytest.mark.feature("F81")
@pytest.mark.usefixtures("entry_points")
def test_an_own_provider_decides_and_may_ask_pulsars_rules() -> None:
    async def ask() -> None:
        provider, resources = made("own")
        await resources.tenants.create("acme", Tenant(("boss",)))
        provider.start()
        assert provider.decided(STRANGER, NamespaceOperation.GET_TOPICS, WEB) == (True, Rule.LOGIN)
        assert provider.decided(ROOT, NamespaceOperation.CREATE_TOPIC, WEB) is None
        assert (await provider.decision(ROOT, NamespaceOperation.CREATE_TOPIC, WEB)).granted
        assert not (await provider.decision(STRANGER, NamespaceOperation.CREATE_TOPIC, WEB)).granted
        provider.close()

    asyncio.run(ask())


@pytest.mark.usefixtures("entry_points")
def test_where_an_own_provider_fails_nobody_is_let_in() -> None:
    async def ask() -> None:
        provider, _ = made("own")
        assert provider.decided(ROOT, GeneralOperation.LOGIN, Target()) == (False, Rule.NONE)
        decision = await provider.decision(ROOT, NamespaceOperation.GET_BUNDLE, WEB)
        assert decision == (False, Rule.NONE)

    asyncio.run(ask())


@pytest.mark.usefixtures("entry_points")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("owm", "did you mean own?"),
        ("org.apache.pulsar.broker.authorization.MultiRolesTokenAuthorizationProvider", "not know"),
        ("broken", "a file is missing"),
    ],
)
def test_a_provider_that_is_not_there_stops_the_start(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(name)


def test_authorization_without_authentication_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="authenticationEnabled=false"):
        Settings(authorizationEnabled=True)
