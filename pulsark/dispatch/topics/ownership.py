"""Which bundles this broker has: how they are claimed, given up and lost.

A bundle is a range of the namespace's hash space. It is claimed by an ephemeral node that is
put with the condition that there is none, so at most one broker holds it. The same commit writes
the bundle's record, which stays: what the owner writes depends on its version (see
``metadata.guarded``).

Nothing here claims because somebody asks a question: whoever loads a topic, or tells a client to
come here, does.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.counts import BundleCounts
from pulsark.dispatch.topics.bundle_claims import BundleClaims
from pulsark.dispatch.topics.bundles import NamespaceBundles
from pulsark.errors import ClientError, ServerError
from pulsark.metadata.changes import Check
from pulsark.metadata.paths import bundle_counted_at, bundle_epoch_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pulsark.dispatch.brokers.counts import Reason
    from pulsark.dispatch.brokers.isolation_source import IsolationSource
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.wire.topic_name import TopicName


log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """A bundle that is claimed, or about to be."""

    claiming: asyncio.Future[int]
    """Comes to the version of the record that counts claims; it changes with the next one."""
    since: float
    leaving: bool = False

    @property
    def guard_version(self) -> int | None:
        """That version; ``None`` while it is not claimed, or cannot be."""
        claiming = self.claiming
        failed = not claiming.done() or claiming.cancelled() or claiming.exception() is not None
        return None if failed else claiming.result()


class Ownership:
    """The bundles that this broker holds."""

    def __init__(
        self,
        metadata: MetadataStore,
        resources: Resources,
        runtime: Runtime,
        registry: BrokerRegistry | None = None,
        isolation: IsolationSource | None = None,
    ) -> None:
        self._metadata = metadata
        self._resources = resources
        self._clock = runtime.clock
        self._registry = registry
        self._held: dict[str, _Held] = {}
        self._listeners: list[Callable[[str], None]] = []
        self.gained: Callable[[str], None] = lambda bundle: None
        """Called when a bundle is this broker's from now on."""
        self.counts = BundleCounts()
        metadata.session.on_end(self._lose_all)
        self.instance = f"{runtime.rng.getrandbits(128):032x}"
        """Of this process alone: the next one of this broker has another."""
        self._claims = BundleClaims(
            metadata, resources, runtime.clock, registry, isolation, self.instance
        )
        self.web_url = ""
        """Where this broker's admin API is, from ``announce`` on."""

    def announce(self, urls: ServiceUrls) -> None:
        """The addresses under which claims are made from now on."""
        self.web_url = urls.web or urls.web_tls
        self._claims.announce(urls)

    def stop(self) -> None:
        """The process is about to end."""
        self._claims.stop()

    def on_loss(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(bundle)`` when a bundle is another broker's, or may be, from now on."""
        self._listeners.append(listener)

    # -- bundles and their names ---

    async def namespace(self, name: TopicName) -> Namespace:
        """The namespace of a topic, or ``ClientError(TopicNotFound)``."""
        namespace = await self._resources.namespaces.get(name.namespace_name)
        if namespace is None:
            raise ClientError(
                ServerError.TopicNotFound, f"Namespace {name.namespace_name} does not exist"
            )
        return namespace

    async def bundle_of(self, name: TopicName) -> str:
        """The namespace bundle of a topic, as ``0x00000000_0x40000000``."""
        return NamespaceBundles(await self.namespace(name)).range_of(name)

    async def bundle_named(self, name: TopicName) -> str:
        """The same as ``tenant/namespace/0x00000000_0x40000000``."""
        return NamespaceBundles(await self.namespace(name)).of(name)

    # -- what is held ---

    def owned(self) -> list[str]:
        """The bundles that are claimed, as ``tenant/namespace/bundle``."""
        return sorted(b for b, held in self._held.items() if held.guard_version is not None)

    def has(self, bundle: str) -> bool:
        """Whether a bundle is this broker's, certainly, and is to stay so."""
        held = self._held.get(bundle)
        return (
            held is not None
            and not held.leaving
            and held.guard_version is not None
            and self._metadata.session.is_sure
        )

    def is_leaving(self, bundle: str) -> bool:
        """Whether a bundle is being unloaded."""
        held = self._held.get(bundle)
        return held is not None and held.leaving

    def holds(self, guard: Check) -> bool:
        """Whether what a guard stands for is still so, and is to stay so, as far as is known."""
        held = self._held.get(bundle_counted_at(guard.path))
        return (
            held is not None
            and not held.leaving
            and held.guard_version == guard.expected_version
            and self._metadata.session.is_sure
        )

    def guard_of(self, bundle: str) -> Check | None:
        """What is true only while this claim of a bundle lasts; ``None`` if it is not held."""
        held = self._held.get(bundle)
        return None if held is None else _guard(bundle, held)

    def known_since(self, bundle: str) -> float:
        """Since when nothing can have happened to a bundle that this process does not know of.

        A broker that never had company knows all from its start on: whoever was before it is gone.
        """
        held = self._held.get(bundle)
        had_company = self._registry is not None and self._registry.had_company
        return held.since if held is not None and had_company else -math.inf

    # -- claims ---

    async def own(self, name: TopicName) -> str:
        """Own the bundle of a topic, or raise; returns ``tenant/namespace/bundle``."""
        bundle = await self.bundle_named(name)
        await self.claim(bundle)
        return bundle

    async def claim(self, bundle: str) -> int:
        """Own a bundle, or raise ``ClientError(ServiceNotReady)``."""
        self.check_session(bundle)
        held = self._held.get(bundle)
        if held is None:
            claiming = asyncio.create_task(self._claims.make(bundle))
            held = self._held[bundle] = _Held(claiming, self._clock.monotonic())
            claiming.add_done_callback(lambda done: self._claim_ended(bundle, done))
        if held.leaving:
            raise _not_here(f"Bundle {bundle} is being unloaded; look it up again")
        version = await asyncio.shield(held.claiming)
        self.check_session(bundle)
        if self._held.get(bundle) is not held:
            raise _not_here(f"Bundle {bundle} was lost just now; look it up again")
        if held.leaving:
            raise _not_here(f"Bundle {bundle} is being unloaded; look it up again")
        return version

    def _claim_ended(self, bundle: str, claiming: asyncio.Task[int]) -> None:
        """Whoever asked for it may be gone: a failure is forgotten here."""
        if claiming.cancelled() or claiming.exception() is not None:
            self.counts.refused_claims += 1
            self._held.pop(bundle, None)
            return
        self.counts.claims += 1
        self.gained(bundle)

    def check_session(self, what: str) -> None:
        """What is held for a session that may be over is another broker's, perhaps."""
        if not self._metadata.session.is_sure:
            raise _not_here(f"{what} may be another broker's: the metadata store was not heard of")

    async def guard(self, name: TopicName) -> Check:
        """Own the bundle of a topic, or raise; returns what is true only while it is owned."""
        bundle = await self.bundle_named(name)
        return Check(bundle_epoch_path(bundle), await self.claim(bundle))

    # -- the end of a claim ---

    async def begin_leaving(self, bundle: str) -> bool:
        """Give no topic of a bundle to clients any more, here or elsewhere. False: it is not held.

        ``leave`` has to follow.
        """
        held = self._held.get(bundle)
        if held is None or held.leaving:
            return False
        await asyncio.wait((held.claiming,))
        guard = _guard(bundle, held)
        if guard is None or self._held.get(bundle) is not held or held.leaving:
            return False
        held.leaving = True
        await self._claims.tell_leaving(guard)
        return True

    async def leave(self, bundle: str, to: str = "") -> None:
        """Give a bundle up that nobody uses here any more; ``to`` a broker, that is told so.

        When this returns, it is another's or nobody's, or will be with the end of this session.
        """
        held = self._held.get(bundle)
        guard = None if held is None or not held.leaving else _guard(bundle, held)
        if guard is None:
            return  # it was lost meanwhile, and perhaps claimed once more
        try:
            await self._claims.end(guard, to)
        finally:
            if self._held.get(bundle) is held:
                del self._held[bundle]

    def divided(self, bundle: str, parts: Mapping[str, int], claimed: Collection[str]) -> None:
        """A bundle that was leaving is no more, and some of its parts are ``claimed``.

        ``parts``: the versions of the records that count their claims.
        """
        held = self._held.get(bundle)
        if held is None or not held.leaving:
            return  # it was lost meanwhile
        del self._held[bundle]
        for part, version in parts.items():
            found = self._held.get(part)
            if found is not None:
                since = found.guard_version
                if since is None or since >= version:
                    continue  # a client came for it meanwhile, and finds that it is here
                del self._held[part]  # of a former namespace of this name
            if part in claimed:
                made: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                made.set_result(version)
                self._held[part] = _Held(made, held.since)
                self.gained(part)

    async def doubt(self, guard: Check) -> None:
        """Somebody says that a claim is over: if it is, the bundle is lost from now on."""
        found = await self._metadata.get(guard.path)
        if found is None or found.version != guard.expected_version:
            self.lost(guard)

    def lost(self, guard: Check) -> None:
        """A write was refused by a guard: its bundle has to be claimed again."""
        bundle = bundle_counted_at(guard.path)
        held = self._held.get(bundle)
        if held is not None and held.guard_version == guard.expected_version:
            log.warning("bundle %s was claimed by another broker", bundle)
            self._lose(bundle, "another broker")

    def _lose_all(self) -> None:
        for bundle in list(self._held):
            self._lose(bundle, "session")

    def _lose(self, bundle: str, why: Reason) -> None:
        self.counts.left[why] += 1
        del self._held[bundle]
        for listener in self._listeners:
            listener(bundle)


def _guard(bundle: str, held: _Held) -> Check | None:
    version = held.guard_version
    return None if version is None else Check(bundle_epoch_path(bundle), version)


def _not_here(why: str) -> ClientError:
    return ClientError(ServerError.ServiceNotReady, why)
