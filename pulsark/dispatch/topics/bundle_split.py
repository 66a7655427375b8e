"""A bundle becomes two or more, at the broker that has it.

All that is in memory of it is closed, as for a release. What its cursors are is written for each
part. Then one commit cuts the namespace there, moves the cursors, ends the claim of the whole and
makes those of the parts. It holds only at the version of the whole's claim, and leaves there that
the bundle was split. So of a broker that lost the bundle nothing is made, and one that still takes
it for a bundle can not claim it: a topic is in one bundle at any time.

If the commit is not answered it is tried again: all attempts expect the same version of the claim,
so one of them at most is made, and what stands there tells whether one was.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pulsark.dispatch.brokers.owners import BundleOwner
from pulsark.dispatch.loop.turns import in_turns
from pulsark.dispatch.topics.bundles import Covered, namespace_of
from pulsark.errors import (
    BadVersionError,
    ClientError,
    MetadataError,
    OutcomeUnknownError,
    OwnershipLostError,
    PulsarkError,
    ServerError,
    StorageError,
)
from pulsark.metadata.changes import Change, Check, Delete, Put
from pulsark.metadata.paths import bundle_epoch_path, bundle_owner_path, managed_ledger_path
from pulsark.metadata.store import ABSENT
from pulsark.storage.cursor.log_writer import CursorLogConfig
from pulsark.storage.managed_ledger.record import read_record
from pulsark.wire.hashes import bundle_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.dispatch.brokers.registry import BrokerRegistry
    from pulsark.dispatch.model.service_urls import ServiceUrls
    from pulsark.dispatch.topics.bundle_release import BundleRelease
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.cursor_logs import CursorLogs
    from pulsark.dispatch.topics.guarded_storage import GuardedStorage
    from pulsark.dispatch.topics.ownership import Ownership
    from pulsark.metadata.namespaces import Namespaces
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Runtime
    from pulsark.storage.cursor.division import DividedCursors, Part
    from pulsark.storage.cursor.log import CursorLog
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Split:
    """One that is under way."""

    bundle: str
    edges: Sequence[int]
    parts: Sequence[str]
    claim: Check
    """The claim of the whole bundle."""
    ident: str
    owner: BundleOwner | None
    """Who claims the parts; ``None``: nobody does."""


class _Parts(NamedTuple):
    """What a commit has made."""

    versions: dict[str, int]
    """Of the records that count the claims of the parts."""
    claimed: set[str]
    """The parts that this broker has."""
    unsure: set[str]
    """Those that it had. A request that came since may have found so, and given one up again."""


class BundleSplit:
    """One for a broker."""

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        metadata: MetadataStore,
        namespaces: Namespaces,
        ownership: Ownership,
        registry: BrokerRegistry,
        storage: GuardedStorage,
        cursor_logs: CursorLogs,
        catalog: TopicCatalog,
        release: BundleRelease,
    ) -> None:
        self._config = CursorLogConfig.from_settings(settings)
        self._runtime = runtime
        self._metadata = metadata
        self._namespaces = namespaces
        self._ownership = ownership
        self._registry = registry
        self._storage = storage
        self._cursor_logs = cursor_logs
        self._catalog = catalog
        self._release = release
        self.weight: Callable[[TopicName], float] = lambda name: 0.0
        """What a topic costs; set by who measures it."""
        self.done = 0
        """Bundles that were split here."""

    async def edges(self, bundle: str, algorithm: str, positions: Sequence[int] = ()) -> list[int]:
        """Where an algorithm of ``splitting`` cuts a bundle; nowhere if there is nothing to cut."""
        covered = Covered(bundle)
        low, high = (int(edge, 16) for edge in bundle.rpartition("/")[2].split("_"))
        hashes = []
        if algorithm in ("topic_count_equally_divide", "flow_or_qps_equally_divide"):
            names = in_turns(await self._catalog.stored_topics(namespace_of(bundle)))
            hashes = [
                (bundle_hash(str(name)), self.weight(name))
                async for name in names
                if name in covered
            ]
        from pulsark.dispatch.brokers.splitting import ALGORITHMS  # few bundles are ever split

        return ALGORITHMS[algorithm](low, high, hashes, positions)

    async def split(self, bundle: str, edges: Sequence[int], *, keep: bool) -> list[str]:
        """Cut a bundle at ``edges``; the parts. Goes on if the caller is cancelled.

        ``keep``: this broker has them then; else the next lookup decides about each.
        Raises ``ClientError(ServiceNotReady)``, ``InvalidResourceError`` if the namespace has too
        many bundles then, ``OwnershipLostError``, ``StorageError`` or another ``MetadataError``.
        """
        namespace, _, ends = bundle.rpartition("/")
        low, high = ends.split("_")
        inner = [f"0x{edge:08x}" for edge in edges]
        parts = [
            f"{namespace}/{one}_{other}"
            for one, other in zip((low, *inner), (*inner, high), strict=True)
        ]
        claim = Check(bundle_epoch_path(bundle), await self._ownership.claim(bundle))
        metadata, _ = await self._storage.of_bundle(bundle)
        cut = await self._namespaces.split(namespace, ends, edges)
        if cut is None:
            raise _gone(bundle)
        # Where bundles and their owners are in two stores it can never be made: nothing is closed.
        with suppress(BadVersionError):  # it is read again
            await metadata.commit((Check(cut.path, cut.expected_version),))
        own = self._registry.own
        if own is None:
            raise ClientError(ServerError.ServiceNotReady, "The broker is starting, or stopping")
        owner = BundleOwner(own.broker_id, own.instance, own.urls) if keep else None
        ident = f"{self._runtime.rng.getrandbits(128):032x}"
        split = _Split(bundle, edges, parts, claim, ident, owner)
        cursors = await self._parts_of_cursors(split)

        async def last(closed: CursorLog | None) -> ServiceUrls | None:
            if closed is None:
                raise StorageError(f"Bundle {bundle} is not split: it was not closed in order")
            for part in parts:
                await self._cursor_logs.close_of(part)  # of a former namespace of this name
            divided = await closed.divide(cursors, metadata, self._runtime)
            made = await self._commit(split, divided)
            self._ownership.divided(bundle, made.versions, made.claimed)
            for part in sorted(made.unsure):
                with suppress(PulsarkError):  # the next lookup decides about it
                    await self._ownership.claim(part)
            self.done += 1
            log.info("bundle %s is split at %s", bundle, ", ".join(inner))
            return own.urls if keep else None

        await self._release.end(bundle, last)
        return parts

    async def _parts_of_cursors(self, split: _Split) -> list[Part]:
        """Which topics are in which part, found out while all goes on.

        What comes later is not known, and so in each part.
        """
        from pulsark.storage.cursor.division import Part  # few bundles are ever divided

        ids: list[set[str]] = [set() for _ in split.parts]
        if (await self._cursor_logs.of_bundle(split.bundle)).has_cursors:
            covered = [Covered(part) for part in split.parts]
            names = await self._catalog.stored_topics(namespace_of(split.bundle))
            async for name in in_turns(names):
                for part, found in zip(covered, ids, strict=True):
                    if name in part:
                        record = await read_record(managed_ledger_path(name), self._metadata)
                        found |= set() if record is None else {record.topic_id}
        return [
            Part(part, frozenset().union(*(other for other in ids if other is not own)))
            for part, own in zip(split.parts, ids, strict=True)
        ]

    async def _commit(self, split: _Split, cursors: DividedCursors) -> _Parts:
        """The parts, once they are made."""
        unknown: MetadataError | None = None
        for _ in range(_ATTEMPTS):
            try:
                if unknown is not None and (made := await self._made(split)) is not None:
                    return made
                changes = await self._changes(split, cursors)
                if not changes:
                    if (made := await self._made(split)) is not None:
                        return made
                    raise _gone(split.bundle)
                versions = await self._metadata.commit(changes)
            except OutcomeUnknownError as error:
                log.warning("the split of bundle %s was not answered: %s", split.bundle, error)
                unknown = error
                await asyncio.sleep(_RETRY_SECONDS)
            except BadVersionError as error:
                unknown = error  # it is looked at what is there, and begun anew from that
            else:
                return _claimed(split, changes, versions)
        raise OutcomeUnknownError(f"Bundle {split.bundle} may be split or not: {unknown}")

    async def _made(self, split: _Split) -> _Parts | None:
        """What an attempt has made that was not answered; ``None``: nothing yet."""
        found = await self._metadata.get(split.claim.path)
        if found is not None and found.version == split.claim.expected_version:
            return None
        if found is None or json.loads(found.value).get("split") != split.ident:
            raise OwnershipLostError(f"Bundle {split.bundle} has another owner, and is not split")
        parts = _Parts({}, set(), set())
        for part in split.parts:
            counted = await self._metadata.get(bundle_epoch_path(part))
            if counted is not None:
                parts.versions[part] = counted.version
                claimer = json.loads(counted.value).get("broker")
                if split.owner is not None and claimer == split.owner.instance:
                    parts.unsure.add(part)
        return parts

    async def _changes(self, split: _Split, cursors: DividedCursors) -> list[Change]:
        """None if there is nothing to be split any more."""
        namespace, _, ends = split.bundle.rpartition("/")
        cut = await self._namespaces.split(namespace, ends, split.edges)
        owner = await self._metadata.get(bundle_owner_path(split.bundle))
        claim = await self._metadata.get(split.claim.path)
        if cut is None or owner is None or claim is None:
            return []
        ended = {"version": 1, "epoch": json.loads(claim.value)["epoch"] + 1, "split": split.ident}
        changes: list[Change] = [
            cut,
            Put(split.claim.path, json.dumps(ended).encode(), split.claim.expected_version),
            Delete(bundle_owner_path(split.bundle), owner.version),
        ]
        for part in split.parts:
            changes += await self._claim_of(part, split.owner)
        return changes + await cursors.changes(self._metadata, self._config, self._runtime)

    async def _claim_of(self, part: str, owner: BundleOwner | None) -> list[Change]:
        """What ends all claims of a part, from a former namespace of this name, and makes one."""
        path = bundle_owner_path(part)
        found = await self._metadata.get(bundle_epoch_path(part))
        stale = await self._metadata.get(path)
        former = None if stale is None else BundleOwner.decode(stale.value)
        if owner is not None and former is not None and former.instance != owner.instance:
            owner = None  # its own broker may still write it
        epoch = 0 if found is None else json.loads(found.value)["epoch"]
        claimer = "" if owner is None else owner.instance
        counted = {"version": 1, "epoch": epoch + 1, "broker": claimer}
        changes: list[Change] = [
            Put(
                bundle_epoch_path(part),
                json.dumps(counted).encode(),
                ABSENT if found is None else found.version,
            )
        ]
        version = ABSENT if stale is None else stale.version
        if owner is not None:
            changes.append(Put(path, owner.encode(), version, ephemeral=True))
        elif stale is not None:
            changes.append(Delete(path, version))
        return changes


def _claimed(split: _Split, changes: Sequence[Change], versions: Sequence[int]) -> _Parts:
    """The parts that a commit has made."""
    claimed = {change.path for change in changes if isinstance(change, Put) and change.ephemeral}
    by_path = dict(zip((change.path for change in changes), versions, strict=True))
    return _Parts(
        {part: by_path[bundle_epoch_path(part)] for part in split.parts},
        {part for part in split.parts if bundle_owner_path(part) in claimed},
        set(),
    )


def _gone(bundle: str) -> ClientError:
    return ClientError(
        ServerError.ServiceNotReady, f"Bundle {bundle} is no bundle any more, or another broker's"
    )
