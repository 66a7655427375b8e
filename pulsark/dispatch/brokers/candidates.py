"""Which live brokers may have a bundle. Placement and moves choose among these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.dispatch.brokers.anti_affinity import AntiAffinityGroups, GroupBundles
    from pulsark.dispatch.brokers.isolation_source import IsolationSource
    from pulsark.dispatch.brokers.load import LoadReport
    from pulsark.dispatch.brokers.registry import BrokerRegistry


class Candidates:
    """Applies the registry's announcements, isolation policies and anti-affinity groups."""

    def __init__(
        self, registry: BrokerRegistry, isolation: IsolationSource, groups: AntiAffinityGroups
    ) -> None:
        self._registry = registry
        self._isolation = isolation
        self._groups = groups

    def of(self, bundle: str, *, persistent: bool = True) -> Mapping[str, LoadReport]:
        """The brokers that may get a bundle for a topic of that kind, with their load.

        If there is none, ``ClientError(ServiceNotReady)`` says why.
        """
        serving = {
            each: broker.load
            for each, broker in self._registry.live.items()
            if broker.serves(persistent=persistent)
        }
        if not serving:
            kind = "persistent" if persistent else "non-persistent"
            raise _nobody(f"No live broker serves {kind} topics")
        return self._permitted(bundle, serving)

    async def beside(self, bundle: str) -> GroupBundles:
        """The bundles of the same anti-affinity group, by broker."""
        return await self._groups.beside(_namespace_of(bundle))

    def check_alone(self, bundle: str) -> None:
        """The same for a broker that is alone: raises unless it may have the bundle."""
        own = self._registry.own
        if own is not None and self._isolation.policies:
            self._permitted(bundle, {own.broker_id: own.load})

    def may_have(self, broker_id: str, bundle: str) -> bool:
        """Whether isolation policies let a live broker have a bundle, given the other brokers."""
        policies = self._isolation.policies
        if not policies:
            return True
        from pulsark.dispatch.brokers.isolation import permitted  # for clusters with policies

        loads = {each: broker.load for each, broker in self._registry.live.items()}
        return broker_id in permitted(_namespace_of(bundle), loads, policies)[0]

    def _permitted(
        self, bundle: str, brokers: Mapping[str, LoadReport]
    ) -> Mapping[str, LoadReport]:
        policies = self._isolation.policies
        if not policies:
            return brokers
        from pulsark.dispatch.brokers.isolation import permitted

        namespace = _namespace_of(bundle)
        found, why = permitted(namespace, brokers, policies)
        if not found:
            raise _nobody(f"{why[0].upper()}{why[1:]} leaves no live broker for {namespace}")
        return {each: brokers[each] for each in found}


def _namespace_of(bundle: str) -> str:
    return bundle.rpartition("/")[0]


def _nobody(why: str) -> ClientError:
    return ClientError(ServerError.ServiceNotReady, why)
