"""Namespaces and their bundles."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pulsark.errors import BadVersionError
from pulsark.limits import NAMESPACE_BUNDLES_MAX
from pulsark.metadata import records
from pulsark.metadata.changes import Put
from pulsark.metadata.paths import policies_path
from pulsark.metadata.records import (
    AlreadyExistsError,
    DoesNotExistError,
    InUseError,
    InvalidResourceError,
    Json,
    ProtectedError,
)
from pulsark.metadata.resource_groups import RESOURCE_GROUP
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.wire.topic_name import parse_namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_BUNDLES = 4
READ_MAX = 1000
"""Namespaces that are kept as they were read last: each lookup of a topic asks for one."""
_HASH_SPACE = 1 << 32

BOOKIE_AFFINITY: Final = "bookie_affinity_group"
DELAYED_DELIVERY: Final = "delayed_delivery_policies"
PROTECTED_POLICIES: Final = frozenset({RESOURCE_GROUP, BOOKIE_AFFINITY, DELAYED_DELIVERY})
"""Policies that only super users set, change and remove: they are about what tenants share."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace ``tenant/local``.

    ``bundle_boundaries`` are hexadecimal texts from 0x00000000 to 0xffffffff; a bundle is
    ``[lower, upper)``. ``policies`` has the policies that were set, in the admin API's JSON; nobody
    changes what is in them.
    """

    name: str
    bundle_boundaries: tuple[str, ...]
    replication_clusters: tuple[str, ...] = ()
    policies: Mapping[str, Any] = field(default_factory=dict)
    emptying: bool = False
    """Its topics are being deleted, and it goes with them: clients get none meanwhile."""

    @property
    def bundles(self) -> list[str]:
        """Bundle ranges like ``0x00000000_0x40000000``, ascending."""
        edges = self.bundle_boundaries
        return [f"{low}_{high}" for low, high in pairwise(edges)]


def even_boundaries(bundles: int) -> tuple[str, ...]:
    """Boundaries that cut the hash space into equal bundles."""
    if not 0 < bundles <= NAMESPACE_BUNDLES_MAX:
        raise InvalidResourceError(f"A namespace has 1 to {NAMESPACE_BUNDLES_MAX} bundles")
    step = _HASH_SPACE // bundles
    edges = [i * step for i in range(bundles)]
    return tuple(f"0x{edge:08x}" for edge in [*edges, _HASH_SPACE - 1])


def check_boundaries(boundaries: Sequence[str]) -> tuple[str, ...]:
    """Boundaries in normal form. They must ascend and cover the hash space."""
    if not all(re.fullmatch("0x[0-9a-fA-F]{1,8}", edge) for edge in boundaries):
        raise InvalidResourceError("Bundle boundaries are 32-bit hexadecimal numbers")
    edges = [int(edge, 16) for edge in boundaries]
    if not 2 <= len(edges) <= NAMESPACE_BUNDLES_MAX + 1:
        raise InvalidResourceError(f"A namespace has 1 to {NAMESPACE_BUNDLES_MAX} bundles")
    if edges != sorted(set(edges)) or edges[0] != 0 or edges[-1] != _HASH_SPACE - 1:
        raise InvalidResourceError("Bundle boundaries must ascend from 0x00000000 to 0xffffffff")
    return tuple(f"0x{edge:08x}" for edge in edges)


class Namespaces:
    """The namespaces of all tenants; names are ``tenant/local``."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._creating = asyncio.Lock()
        self._read: dict[str, tuple[bytes, Namespace | None]] = {}
        """What the documents were that were read last, and what they say."""

    async def list(self, tenant: str) -> list[str]:
        """Full names of a tenant's namespaces, sorted."""
        return [name for name in await self.names(tenant) if await self.get(name) is not None]

    async def names(self, tenant: str) -> Sequence[str]:
        """The same, those that are being deleted among them."""
        return [f"{tenant}/{each}" for each in await self._store.children(policies_path(tenant))]

    async def is_hidden(self, name: str) -> bool:
        """Whether a namespace is there, and being deleted."""
        record = await records.read(self._store, policies_path(name))
        return record is not None and bool(record.get("deleted"))

    async def get(self, name: str) -> Namespace | None:
        """A namespace, unless it is absent or being deleted."""
        path = policies_path(name)
        found = await self._store.get(path)
        if found is None:
            self._read.pop(path, None)
            return None
        known = self._read.get(path)
        if known is not None and known[0] == found.value:
            return known[1]
        record = records.decode(found)
        namespace = None if record.get("deleted") else _namespace(name, record)
        if len(self._read) >= READ_MAX:
            self._read.clear()
        self._read[path] = found.value, namespace
        return namespace

    async def create(
        self,
        name: str,
        *,
        boundaries: Sequence[str] = (),
        replication_clusters: Sequence[str] = (),
        policies: Mapping[str, Any] | None = None,
        most: int = 0,
        by_super_user: bool = False,
    ) -> None:
        """Add a namespace; without ``boundaries`` it has four bundles.

        Raises ``AlreadyExistsError``, ``DoesNotExistError`` (no such tenant), ``ProtectedError``,
        or ``InvalidResourceError``, for example if the tenant has ``most`` already; 0 is no limit.
        """
        if not by_super_user:
            _check_protected({}, policies or {})
        tenant, local = parse_namespace(name)
        if name != f"{tenant}/{local}":
            raise InvalidResourceError(f"namespace: {name} must have the form tenant/namespace")
        record = _namespace_json(
            Namespace(
                name,
                check_boundaries(boundaries) if boundaries else even_boundaries(DEFAULT_BUNDLES),
                tuple(replication_clusters),
                policies or {},
            )
        )
        async with self._creating:
            if 0 < most <= len(await self.list(tenant)):
                raise InvalidResourceError(
                    f"Exceed the maximum number of namespaces in tenant {tenant}"
                )
            await self._create(tenant, name, record)

    async def _create(self, tenant: str, name: str, record: Json) -> None:
        path, above = policies_path(name), policies_path(tenant)
        while True:
            found = await self._store.get(path)
            if found is not None and not records.decode(found).get("deleted"):
                raise AlreadyExistsError(f"Namespace {name} already exists")
            parent = await self._store.get(above)
            if parent is None:
                raise DoesNotExistError(f"Tenant {tenant} does not exist")
            version = ABSENT if found is None else found.version
            try:
                # This writes the tenant, too, so that a concurrent deletion of it is refused.
                await self._store.commit(
                    (
                        Put(path, records.encode(record), version),
                        Put(above, parent.value, parent.version),
                    )
                )
            except BadVersionError:
                continue  # another writer was first, and may have created the namespace
            return

    async def update(
        self, name: str, change: Callable[[Namespace], Namespace], *, by_super_user: bool = False
    ) -> None:
        """Apply ``change``, repeatedly if another writer is first.

        Raises ``DoesNotExistError``, or ``ProtectedError`` if it changes one of the
        ``PROTECTED_POLICIES`` for somebody who is no super user.
        """

        def apply(old: Json) -> Json:
            _check_there(name, old)
            before = _namespace(name, old)
            after = change(before)
            if not by_super_user:
                _check_protected(before.policies, after.policies)
            return _namespace_json(after)

        await records.change(self._store, policies_path(name), apply, f"Namespace {name}")

    async def split(self, name: str, bundle: str, edges: Sequence[int]) -> Put | None:
        """What cuts a bundle of a namespace at ``edges``, which are inside; to be committed.

        ``None`` if there is no such bundle. ``InvalidResourceError`` if there were too many then.
        """
        path = policies_path(name)
        found = await self._store.get(path)
        if found is None:
            return None
        record = records.decode(found)
        namespace = _namespace(name, record)
        if bundle not in namespace.bundles:
            return None
        inner = (f"0x{edge:08x}" for edge in edges)
        boundaries = check_boundaries(sorted({*namespace.bundle_boundaries, *inner}))
        return Put(path, records.encode({**record, "boundaries": list(boundaries)}), found.version)

    async def begin_emptying(self, name: str) -> None:
        """Note that all topics of a namespace are to go. ``DoesNotExistError``."""
        await self.update(name, lambda old: replace(old, emptying=True))

    async def end_emptying(self, name: str) -> None:
        """Undo ``begin_emptying``, because the namespace stays."""
        await self.update(name, lambda old: replace(old, emptying=False))

    async def require_emptying(self, name: str) -> None:
        """``InUseError`` if all topics of a namespace are not to go any more."""
        namespace = await self.get(name)
        if namespace is not None and not namespace.emptying:
            raise _not_emptying(name)

    async def begin_delete(self, name: str, *, emptied: bool = False) -> None:
        """Hide the namespace, so that no more topics can be created in it. ``DoesNotExistError``.

        ``emptied``: ``InUseError`` if all its topics are not to go any more.
        """

        def hide(old: Json) -> Json:
            _check_there(name, old)
            if emptied and not old.get("emptying"):
                raise _not_emptying(name)
            return {**old, "deleted": True}

        await records.change(self._store, policies_path(name), hide, f"Namespace {name}")

    async def cancel_delete(self, name: str) -> None:
        """Undo ``begin_delete``, because the namespace is in use."""
        await records.change(
            self._store,
            policies_path(name),
            lambda old: {**old, "deleted": False},
            f"Namespace {name}",
        )

    async def finish_delete(self, name: str) -> None:
        """Remove an empty namespace after ``begin_delete``; not one that was created since."""
        await records.delete_marked(
            self._store, policies_path(name), "deleted", f"Namespace {name}"
        )


def _check_protected(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    changed = sorted(key for key in PROTECTED_POLICIES if before.get(key) != after.get(key))
    if changed:
        raise ProtectedError(f"Only super users change {', '.join(changed)} of a namespace")


def _check_there(name: str, record: Json) -> None:
    if record.get("deleted"):
        raise DoesNotExistError(f"Namespace {name} does not exist")


def _not_emptying(name: str) -> InUseError:
    return InUseError(
        f"Namespace {name} was changed by an older broker, or deleted and made anew, while its "
        "topics were deleted; try again if it is to go"
    )


def _namespace(name: str, record: Json) -> Namespace:
    return Namespace(
        name,
        tuple(record["boundaries"]),
        tuple(record["replicationClusters"]),
        record["policies"],
        record.get("emptying", False),
    )


def _namespace_json(namespace: Namespace) -> Json:
    record: Json = {
        "boundaries": list(namespace.bundle_boundaries),
        "replicationClusters": list(namespace.replication_clusters),
        "policies": dict(namespace.policies),
    }
    return {**record, "emptying": True} if namespace.emptying else record
