"""What a claim of a bundle is in the metadata store: how it is made there, and ended.

Which bundles this process has, and who may use them, is ``ownership``'s.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from pulsark.dispatch.brokers.owners import Assigned, BundleOwner
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import (
    BadVersionError,
    ClientError,
    CorruptMetadataError,
    MetadataError,
    MetadataRefusedError,
    OutcomeUnknownError,
    ServerError,
)
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.paths import (
    assigned_bundle_path,
    bundle_counted_at,
    bundle_epoch_path,
    bundle_owner_path,
)
from pulsark.metadata.store import ABSENT, ANY_VERSION, MetadataStore

if TYPE_CHECKING:
    from pulsark.dispatch.brokers.isolation_source import IsolationSource
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import Versioned
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_RETRY_SECONDS = 0.5


class BundleClaims:
    """Those that this process makes."""

    def __init__(
        self,
        metadata: MetadataStore,
        resources: Resources,
        clock: Clock,
        registry: BrokerRegistry | None,
        isolation: IsolationSource | None,
        instance: str,
    ) -> None:
        self._metadata = metadata
        self._resources = resources
        self._clock = clock
        self._registry = registry
        self._isolation = isolation
        self._instance = instance
        self._own = BundleOwner("", instance, ServiceUrls())
        self._stops = False

    def announce(self, urls: ServiceUrls) -> None:
        """The addresses under which claims are made from now on."""
        self._own = BundleOwner(urls.broker_id, self._instance, urls)

    def stop(self) -> None:
        """The process is about to end: claims end with its session if the store is away."""
        self._stops = True

    def _check_not_in_vain(self) -> None:
        if self._stops and not self._metadata.session.is_sure:
            raise MetadataError("the metadata store was not heard of")

    async def make(self, bundle: str) -> int:
        """Claim a bundle, or raise; returns the version of the record that counts claims."""
        version = await self._claim(bundle)
        if self._isolation is not None and not await self._isolation.allow(
            self._own.broker_id, bundle
        ):
            # Only now: a policy that is set later moves what it finds claimed.
            await self.end(Check(bundle_epoch_path(bundle), version))
            raise _not_here(f"Namespace isolation policies keep bundle {bundle} away from here")
        return version

    async def _claim(self, bundle: str) -> int:
        path = bundle_epoch_path(bundle)
        for _ in range(_ATTEMPTS):
            owner = await self._metadata.get(bundle_owner_path(bundle))
            found = await self._metadata.get(path)
            kept = ABSENT
            if owner is not None:
                claim = BundleOwner.decode(owner.value)
                is_ours = found is not None and claim.instance == self._instance == _claimer(found)
                if found is not None and is_ours and not claim.leaving:
                    return found.version  # an attempt was made that nobody answered
                if is_ours:
                    kept = owner.version  # it was to be given up, and could not be
                elif await self._remove_former(bundle, owner):
                    continue
                else:
                    raise _not_here(f"Bundle {bundle} is owned by another broker")
            if found is not None and _is_split(found):
                await _check_there_is(bundle, self._resources)
            epoch = 0 if found is None else json.loads(found.value)["epoch"]
            claimed = {"version": 1, "epoch": epoch + 1, "broker": self._instance}
            changes: list[Change] = [
                Put(bundle_owner_path(bundle), self._own.encode(), kept, ephemeral=True),
                Put(
                    path,
                    json.dumps(claimed).encode(),
                    ABSENT if found is None else found.version,
                ),
                await self._assigned_here(bundle),
            ]
            try:
                return (await self._metadata.commit(changes))[1]
            except BadVersionError:
                continue  # another broker was faster, or an attempt that nobody answered
            except OutcomeUnknownError as error:
                log.warning("the claim of bundle %s was not answered: %s", bundle, error)
                await asyncio.sleep(_RETRY_SECONDS)
        raise _not_here(f"Bundle {bundle} cannot be claimed now; try again")

    async def _assigned_here(self, bundle: str) -> Change:
        """What a claim does with the note that a broker was told to make it: then there is none."""
        path = assigned_bundle_path(bundle)
        found = await self._metadata.get(path)
        if found is None:
            return Check(path, ABSENT)
        assigned = Assigned.decode(found)
        broker_id = assigned.broker_id
        if (
            broker_id != self._own.broker_id
            and assigned.holds(self._clock.now_ms())
            and (self._registry is None or self._registry.get(broker_id) is not None)
        ):
            raise _not_here(f"Bundle {bundle} goes to the broker {broker_id}; look it up again")
        return Delete(path, found.version)

    async def _remove_former(self, bundle: str, owner: Versioned) -> bool:
        """Whether the owner was a former process of this broker, whose session is not over yet.

        That the registry names this process tells which of the two is the former one.
        """
        this = None if self._registry is None else self._registry.check
        if this is None or BundleOwner.decode(owner.value).broker_id != self._own.broker_id:
            return False
        path = bundle_owner_path(bundle)
        try:
            await self._metadata.commit((this, Delete(path, owner.version)))
        except BadVersionError as error:
            return error.path == path
        except OutcomeUnknownError:
            return True  # it is looked at again
        return True

    async def end(self, guard: Check, to: str = "") -> None:
        """Give up the claim of a guard, not a later one; ``to`` a broker, that is told so.

        Others are told to wait for this: it is tried for as long as the session lasts. A process
        that is about to end leaves it to its session if the store is away: ``MetadataError``.
        """
        while not self._metadata.session.has_ended:
            self._check_not_in_vain()
            try:
                if await self._try_to_end(guard, to):
                    return
            except (MetadataRefusedError, CorruptMetadataError):
                if not self._metadata.session.has_ended:
                    raise
            except MetadataError as error:
                bundle = bundle_counted_at(guard.path)
                log.warning("the release of bundle %s was not answered: %s", bundle, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _try_to_end(self, guard: Check, to: str) -> bool:
        bundle = bundle_counted_at(guard.path)
        path = bundle_owner_path(bundle)
        found = await self._metadata.get(path)
        if found is None or BundleOwner.decode(found.value).instance != self._instance:
            return True  # an attempt that nobody answered, or it was lost
        changes: list[Change] = [guard, Delete(path, found.version)]
        if to:
            note = Assigned(to, self._clock.now_ms()).encode()
            changes.append(Put(assigned_bundle_path(bundle), note, ANY_VERSION))
        try:
            await self._metadata.commit(changes)
        except BadVersionError as error:
            return error.path == guard.path  # it was lost, and claimed here once more
        return True

    async def tell_leaving(self, guard: Check) -> None:
        """What lookups elsewhere say; nothing else depends on it."""
        bundle = bundle_counted_at(guard.path)
        path = bundle_owner_path(bundle)
        leaving = replace(self._own, leaving=True)
        try:
            self._check_not_in_vain()
            found = await self._metadata.get(path)
            if found is not None and BundleOwner.decode(found.value).instance == self._instance:
                told = Put(path, leaving.encode(), found.version, ephemeral=True)
                await self._metadata.commit((guard, told))
        except MetadataError as error:
            log.debug("others do not hear that bundle %s is released: %s", bundle, error)


async def _check_there_is(bundle: str, resources: Resources) -> None:
    """It was split: nobody may have it any more, unless it is of a later namespace of this name."""
    namespace, _, edges = bundle.rpartition("/")
    found = await resources.namespaces.get(namespace)
    if found is None or edges not in found.bundles:
        raise _not_here(f"Bundle {bundle} was split; look it up again")


def _claimer(record: Versioned) -> str | None:
    claimer: str | None = json.loads(record.value).get("broker")
    return claimer


def _is_split(record: Versioned) -> bool:
    """Whether what counts the claims of a bundle says that it was split."""
    return "split" in json.loads(record.value)


def _not_here(why: str) -> ClientError:
    return ClientError(ServerError.ServiceNotReady, why)
