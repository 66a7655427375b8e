"""Bundles are split where too much goes on in one, and moved away from brokers that are too busy.

Each broker splits what it has. The leader has bundles moved, by asking who has them. Both are done
in order, one after the other, and nothing is done for a broker that is alone.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.config.store_urls import configuration_store_url
from pulsark.dispatch.topics.bundles import namespace_of
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.metadata.paths import MOVED_BUNDLES
from pulsark.metadata.store import ANY_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pulsark.config.settings import Settings
    from pulsark.dispatch.brokers.anti_affinity import GroupBundles
    from pulsark.dispatch.brokers.candidates import Candidates
    from pulsark.dispatch.brokers.load import BundleLoad, LoadReport
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.brokers.shedding import Move, Shedding
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.topics.bundle_release import BundleRelease
    from pulsark.dispatch.topics.bundle_split import BundleSplit
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.dispatch.upkeep.share import Share
    from pulsark.metadata.namespaces import Namespaces
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)


class AutoSplit:
    """Splits bundles of this broker."""

    def __init__(
        self,
        settings: Settings,
        namespaces: Namespaces,
        ownership: Ownership,
        registry: BrokerRegistry,
        split: BundleSplit,
        loads: Callable[[], Mapping[str, BundleLoad]],
    ) -> None:
        """``loads``: by bundle, as measured last."""
        self._settings = settings
        self._namespaces = namespaces
        self._ownership = ownership
        self._registry = registry
        self._split = split
        self._loads = loads
        self._seen: Mapping[str, BundleLoad] = {}

    async def look(self) -> None:
        """Split one bundle at most: what comes of it is measured before the next is split."""
        settings, loads = self._settings, self._loads()
        wanted = settings.loadBalancerEnabled and settings.loadBalancerAutoBundleSplitEnabled
        if not wanted or self._registry.is_alone or loads is self._seen:
            return
        if configuration_store_url(settings):  # the owners of bundles are in another store
            return
        from pulsark.dispatch.brokers.splitting import SplitLimits, to_split  # as below

        self._seen = loads
        held = {bundle: load for bundle, load in loads.items() if self._ownership.has(bundle)}
        limits = SplitLimits.from_settings(settings)
        bundles = {}
        for name in {namespace_of(bundle) for bundle in held}:
            namespace = await self._namespaces.get(name)
            bundles[name] = limits.bundles if namespace is None else len(namespace.bundles)
        bundle = to_split(held, bundles, limits)
        if bundle is None:
            return
        edges = await self._split.edges(bundle, settings.defaultNamespaceBundleSplitAlgorithm)
        if not edges:
            return
        log.info("bundle %s is split, because of %s", bundle, held[bundle])
        try:
            keep = not settings.loadBalancerAutoUnloadSplitBundlesEnabled
            await self._split.split(bundle, edges, keep=keep)
        except PulsarkError as error:
            log.warning("bundle %s is not split: %s", bundle, error)


class LoadShedding:
    """Has bundles moved, while this broker leads."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metadata: MetadataStore,
        registry: BrokerRegistry,
        candidates: Candidates,
        share: Share,
        release: BundleRelease,
        peers: Callable[[], Peers | None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._metadata = metadata
        self._registry = registry
        self._candidates = candidates
        self._share = share
        self._release = release
        self._peers = peers
        self._shedding: Shedding | None = None
        self.moves = 0
        """Bundles that were moved."""

    async def look(self) -> None:
        """One round."""
        settings = self._settings
        wanted = settings.loadBalancerEnabled and settings.loadBalancerSheddingEnabled
        if not wanted or self._registry.is_alone or not self._share.leads:
            self._shedding = None
            return
        if self._shedding is None:
            from pulsark.dispatch.brokers.shedding import Shedding  # one that is alone sheds none

            self._shedding = Shedding(await self._moved())
        loads = {broker_id: live.load for broker_id, live in self._registry.live.items()}
        moves = self._shedding.round(
            loads,
            self._clock.now_ms() / 1000,
            threshold=settings.loadBalancerBrokerThresholdShedderPercentage / 100,
            grace_seconds=settings.loadBalancerSheddingGracePeriodMinutes * 60,
            may_have=partial(self._may_have, await self._groups(loads.values())),
        )
        if moves:  # first: whoever leads next knows also of those of which this one did not hear
            value = {"version": 1, "bundles": self._shedding.moved}
            try:
                await self._metadata.put(MOVED_BUNDLES, json.dumps(value).encode(), ANY_VERSION)
            except BaseException:
                self._shedding = None  # nothing is moved; what is stored is read again
                raise
        peers = self._peers()
        for move in moves:
            await self._carry_out(move, peers)

    async def _moved(self) -> dict[str, float]:
        """What was moved not long ago, also by another leader."""
        found = await self._metadata.get(MOVED_BUNDLES)
        try:
            moved = {} if found is None else json.loads(found.value)["bundles"]
            return {str(bundle): float(at) for bundle, at in moved.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("which bundles were moved not long ago cannot be read: %r", error)
            return {}

    async def _groups(self, loads: Iterable[LoadReport]) -> dict[str, GroupBundles]:
        """By namespace of busy bundles who has those of its anti-affinity group."""
        bundles = {namespace_of(bundle): bundle for load in loads for bundle, _ in load.busiest}
        return {name: await self._candidates.beside(each) for name, each in bundles.items()}

    def _may_have(self, groups: Mapping[str, GroupBundles], broker_id: str, bundle: str) -> bool:
        """A bundle has topics of both kinds, so it does not go to who serves one kind only."""
        live = self._registry.get(broker_id)
        return (
            live is not None
            and live.serves(persistent=True)
            and live.serves(persistent=False)
            and groups[namespace_of(bundle)].may_move(bundle, broker_id)
            and self._candidates.may_have(broker_id, bundle)
        )

    async def _carry_out(self, move: Move, peers: Peers | None) -> None:
        log.info("bundle %s goes from %s to %s, which is less busy", *_told(move))
        try:
            if move.source == self._registry.own_id:
                await self._release.release(move.bundle, move.to)
            elif peers is not None:
                await self._ask(move, peers)
        except PulsarkError as error:
            log.warning("bundle %s stays at %s, and not at %s: %s", *_told(move), error)
        else:
            self.moves += 1

    async def _ask(self, move: Move, peers: Peers) -> None:
        peer = await peers.knows.where_bundle(move.bundle)
        if peer is None or peer.broker_id != move.source:
            raise _refused("it has left there already")
        namespace, _, edges = move.bundle.rpartition("/")
        target = f"/admin/v2/namespaces/{namespace}/{edges}/unload?destinationBroker={move.to}"
        status, answer = await peers.part(peer, "PUT", target)
        if status >= 400:
            raise _refused(answer[:200].decode("utf-8", "replace"))


def _refused(why: str) -> ClientError:
    return ClientError(ServerError.ServiceNotReady, why)


def _told(move: Move) -> tuple[str, str, str]:
    return move.bundle, move.source, move.to
