"""Who serves what, for calls between brokers: ``Whereabouts`` from what lookups go by."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from pulsark.dispatch.peers.whereabouts import Peer
from pulsark.errors import ClientError, ServerError

if TYPE_CHECKING:
    from pulsark.dispatch.brokers.leader import Leader
    from pulsark.dispatch.brokers.owners import BundleOwner, BundleOwners
    from pulsark.dispatch.brokers.registry import BrokerRegistry, LiveBroker
    from pulsark.dispatch.topics.lookup import Lookup
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.wire.topic_name import TopicName


_ATTEMPTS = 10
_WAIT_SECONDS = 0.5
"""How often, and with which longest pause, to ask who should have an unowned bundle."""


class KnownBrokers:
    """What the registry, the claims and the leader's value say."""

    def __init__(
        self,
        registry: BrokerRegistry,
        leader: Leader,
        owners: BundleOwners,
        ownership: Ownership,
        lookup: Lookup,
    ) -> None:
        self._registry = registry
        self._leader = leader
        self._owners = owners
        self._ownership = ownership
        self._lookup = lookup

    @property
    def broker_id(self) -> str:
        """This broker."""
        return self._registry.own_id

    @property
    def instance(self) -> str:
        """Its process."""
        return self._ownership.instance

    async def where(self, topic: TopicName) -> Peer | None:
        """Who serves a topic, which has no partitions; ``None``: this broker, or nobody."""
        return await self.where_bundle(await self._ownership.bundle_named(topic))

    async def where_bundle(self, bundle: str) -> Peer | None:
        """The same of a bundle."""
        if self._ownership.has(bundle):
            return None
        owner = await self._owners.of(bundle)
        return None if owner is None else self._owner(owner)

    async def find(self, topic: TopicName) -> Peer | None:
        """The same as ``where``; if nobody serves it, somebody is chosen for it."""
        for attempt in range(_ATTEMPTS):
            bundle = await self._ownership.bundle_named(topic)
            if self._ownership.has(bundle):
                return None
            with self._owners.changes_of(bundle) as changed:
                owner = await self._owners.of(bundle)
                if owner is not None:
                    return self._owner(owner)
                try:
                    found = await self._lookup.find(topic)
                except ClientError as error:
                    if error.code is not ServerError.ServiceNotReady or attempt == _ATTEMPTS - 1:
                        raise
                else:
                    live = self._registry.get(found.broker_id)
                    if found.is_here:
                        return None
                    if live is not None:
                        return _at(live)
                # Brokers agree about it just now.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WAIT_SECONDS):
                        await changed.wait()
        raise AssertionError("not reached")

    def _owner(self, owner: BundleOwner) -> Peer | None:
        if owner.broker_id == self._registry.own_id:
            return None
        live = self._registry.get(owner.broker_id)
        if live is not None and live.instance == owner.instance:
            return _at(live)
        return Peer(owner.broker_id, owner.urls.web or owner.urls.web_tls, owner.instance)

    async def others(self) -> list[Peer]:
        """All live brokers but this one."""
        live = sorted(self._registry.live.items())
        return [_at(each) for name, each in live if name != self.broker_id]

    async def leader(self) -> Peer | None:
        """The broker that gives bundles to brokers, this one too; ``None`` if there is none now."""
        found = self._registry.get(self._leader.broker_id)
        return None if found is None else _at(found)


def _at(live: LiveBroker) -> Peer:
    return Peer(live.broker_id, live.urls.web or live.urls.web_tls, live.instance)
