"""Bundles that a new isolation policy takes away from this broker are moved to another one.

Each broker does it for what it has. A bundle stays for as long as there is nobody for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.placement import choose
from pulsark.dispatch.loop.retries import until_read
from pulsark.dispatch.topics.bundles import namespace_of
from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from pulsark.dispatch.brokers.candidates import Candidates
    from pulsark.dispatch.brokers.isolation_source import IsolationSource
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.topics.bundle_release import BundleRelease
    from pulsark.dispatch.topics.ownership import Ownership


class IsolationMoves:
    """One for a broker."""

    def __init__(
        self,
        registry: BrokerRegistry,
        ownership: Ownership,
        candidates: Candidates,
        isolation: IsolationSource,
        release: BundleRelease,
    ) -> None:
        self._registry = registry
        self._ownership = ownership
        self._candidates = candidates
        self._isolation = isolation
        self._release = release
        self._moving: asyncio.Task[None] | None = None
        isolation.changed = self._look_soon
        ownership.gained = self._look_at

    def close(self) -> None:
        """Move nothing more. What is on its way goes on."""
        if self._moving is not None:
            self._moving.cancel()

    def _look_soon(self) -> None:
        self.close()  # it may be waiting for a broker that the policies before were about
        if self._isolation.policies:
            work = until_read(self._move, "bundles are not where isolation policies want them")
            self._moving = asyncio.create_task(work)

    def _look_at(self, bundle: str) -> None:
        """It may have been on its way here, or have been split, while policies were changed."""
        own = self._registry.own
        if own is not None and not self._isolation.could_have(own.broker_id, bundle):
            self._look_soon()

    async def _move(self) -> None:
        """One after the other, for the sake of the clients. Raises if some are left."""
        failed: PulsarkError | None = None
        given: dict[str, str] = {}
        for bundle in self._ownership.owned():
            try:
                to = await self._other(bundle, given)
                if to is not None:
                    given[bundle] = to
                    await self._release.release(bundle, to)
            except PulsarkError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _other(self, bundle: str, given: dict[str, str]) -> str | None:
        """Who is to have a bundle that is at the wrong broker. Raises if there is nobody now."""
        from pulsark.dispatch.brokers.isolation import policy_for  # for clusters with policies

        policy = policy_for(namespace_of(bundle), self._isolation.policies)
        own = self._registry.own
        if policy is None or not policy.moves or own is None:
            return None
        if self._candidates.may_have(own.broker_id, bundle):
            return None
        found = self._candidates.of(bundle, persistent=own.serves(persistent=True))
        beside = await self._candidates.beside(bundle)
        return choose(bundle, found, given.values(), beside.held(given))
