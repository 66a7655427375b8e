"""Which broker serves a topic: namespace bundles, and the claims on them.

A bundle is a range of the namespace's hash space. It is claimed by an ephemeral node that is
put with the condition that there is none, so at most one broker holds it. The same commit writes
the bundle's record, which stays: what the owner writes depends on its version (see
``metadata.guarded``).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, ClientError, OutcomeUnknownError, ServerError
from pulsark.metadata.changes import Check, Put
from pulsark.metadata.paths import bundle_epoch_path, bundle_owner_path
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.wire.hashes import bundle_hash

if TYPE_CHECKING:
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.metadata.namespaces import Namespace
    from pulsark.metadata.resources import Resources
    from pulsark.runtime import Runtime
    from pulsark.wire.topic_name import TopicName


log = logging.getLogger(__name__)

_ATTEMPTS = 10
_RETRY_SECONDS = 0.5


class Ownership:
    """The bundles that this broker holds."""

    def __init__(self, metadata: MetadataStore, resources: Resources, runtime: Runtime) -> None:
        self._metadata = metadata
        self._resources = resources
        self._owned: dict[str, asyncio.Task[int]] = {}
        metadata.session.on_end(self._owned.clear)
        self._owner = b""
        self.instance = f"{runtime.rng.getrandbits(128):032x}"
        """Of this process alone: the next one of this broker has another."""
        self.web_url = ""
        """Where this broker's admin API is, from ``announce`` on."""

    def announce(self, urls: ServiceUrls) -> None:
        """The addresses under which claims are made from now on."""
        self.web_url = urls.web or urls.web_tls
        claim = {"nativeUrl": urls.broker, "httpUrl": urls.web, "disabled": False}
        if urls.broker_tls:
            claim["nativeUrlTls"] = urls.broker_tls
        if urls.web_tls:
            claim["httpUrlTls"] = urls.web_tls
        self._owner = json.dumps(claim).encode()

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
        namespace = await self.namespace(name)
        boundaries = [int(b, 16) for b in namespace.bundle_boundaries]
        point = bundle_hash(str(name))
        for low, high in itertools.pairwise(boundaries):
            if low <= point < high or (high == boundaries[-1] and point == high):
                return f"0x{low:08x}_0x{high:08x}"
        raise ClientError(ServerError.MetadataError, f"No bundle covers {name}")

    def owned(self) -> list[str]:
        """The bundles that are claimed, as ``tenant/namespace/bundle``."""
        return sorted(
            bundle
            for bundle, claim in self._owned.items()
            if claim.done() and not claim.cancelled() and claim.exception() is None
        )

    async def own(self, name: TopicName) -> str:
        """Own the bundle of a topic, or raise; returns ``tenant/namespace/bundle``."""
        bundle = f"{name.namespace_name}/{await self.bundle_of(name)}"
        self._check_session(bundle)
        claim = self._owned.get(bundle)
        if claim is None:
            claim = self._owned[bundle] = asyncio.create_task(self._claim(bundle))
        try:
            await asyncio.shield(claim)
        except Exception:
            if self._owned.get(bundle) is claim:
                del self._owned[bundle]
            raise
        self._check_session(bundle)
        return bundle

    def _check_session(self, bundle: str) -> None:
        """What is held for a session that may be over is another broker's, perhaps."""
        if not self._metadata.session.is_sure:
            raise ClientError(
                ServerError.ServiceNotReady,
                f"Bundle {bundle} may be another broker's: the metadata store was not heard of",
            )

    async def guard(self, name: TopicName) -> Check:
        """Own the bundle of a topic, or raise; returns what is true only while it is owned."""
        bundle = await self.own(name)
        return Check(bundle_epoch_path(bundle), self._owned[bundle].result())

    def lost(self, guard: Check) -> None:
        """A write was refused by a guard: its bundle has to be claimed again."""
        for bundle, claim in list(self._owned.items()):
            is_meant = claim.done() and not claim.cancelled() and claim.exception() is None
            if is_meant and Check(bundle_epoch_path(bundle), claim.result()) == guard:
                log.warning("bundle %s was claimed by another broker", bundle)
                del self._owned[bundle]

    async def _claim(self, bundle: str) -> int:
        """Returns the version of the record that counts claims; it changes with the next one."""
        path = bundle_epoch_path(bundle)
        for _ in range(_ATTEMPTS):
            found = await self._metadata.get(path)
            record = {"epoch": 0} if found is None else json.loads(found.value)
            claimed = {"version": 1, "epoch": record["epoch"] + 1, "broker": self.instance}
            version = ABSENT if found is None else found.version
            try:
                _, version = await self._metadata.commit(
                    (
                        Put(bundle_owner_path(bundle), self._owner, ABSENT, ephemeral=True),
                        Put(path, json.dumps(claimed).encode(), version),
                    )
                )
            except BadVersionError as error:
                if found is not None and record.get("broker") == self.instance:
                    return found.version  # an earlier attempt was made that nobody answered
                if error.path == path:
                    continue  # another broker was faster, or such an attempt
                raise ClientError(
                    ServerError.ServiceNotReady, f"Bundle {bundle} is owned by another broker"
                ) from error
            except OutcomeUnknownError as error:
                log.warning("the claim of bundle %s was not answered: %s", bundle, error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            return version
        raise ClientError(
            ServerError.ServiceNotReady, f"Bundle {bundle} cannot be claimed now; try again"
        )
