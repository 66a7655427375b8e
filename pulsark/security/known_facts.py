"""A cache of the facts of decisions, as fresh as the metadata store's watches.

Most decisions need only cached facts, and are made at once. Other facts are read on demand. Names
that do not exist are cached, too: otherwise they would be the most expensive.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from pulsark.metadata.paths import POLICIES, policies_at
from pulsark.security.facts import Facts, Grants, Rules
from pulsark.security.limits import FACTS_KEPT_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.resources import Resources
    from pulsark.metadata.store import MetadataStore
    from pulsark.security.decisions import Target

Known = frozenset[str] | Grants | None
"""A tenant's administrators or a namespace's grants; ``None`` if there is no such thing."""


class KnownFacts:
    """The facts about tenants and namespaces that were asked for."""

    def __init__(
        self,
        rules: Rules,
        metadata: MetadataStore,
        resources: Resources,
        *,
        most: int = FACTS_KEPT_MAX,
    ) -> None:
        """``most``: the most names and grants that are cached."""
        self._metadata = metadata
        self._resources = resources
        self._most = most
        self._general = Facts(rules)
        self._kept: OrderedDict[str, Known] = OrderedDict()
        """By name of a tenant, or of a namespace (with a slash); the newest last."""
        self._size = 0
        self._reading: dict[str, asyncio.Task[Known]] = {}
        self._end_watch: Callable[[], None] | None = None

    def start(self) -> None:
        """Start watching and caching."""
        self._end_watch = self._metadata.watch(POLICIES, self._changed, self._missed)

    def close(self) -> None:
        """Stop watching and caching."""
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        for task in self._reading.values():
            task.cancel()
        self._reading.clear()
        self._kept.clear()
        self._size = 0

    def of(self, target: Target) -> Facts | None:
        """The facts about a target; ``None`` if some must be read first."""
        if not target.tenant:
            return self._general
        kept = self._kept
        try:
            admins = kept[target.tenant]
            kept.move_to_end(target.tenant)
            grants = None
            if target.namespace:
                grants = kept[target.namespace]
                kept.move_to_end(target.namespace)
        except KeyError:
            return None
        return Facts(self._general.rules, admins, grants)  # type: ignore[arg-type]

    async def read(self, target: Target) -> Facts:
        """The facts about a target. Raises ``PulsarkError`` if the store cannot be read."""
        if not target.tenant:
            return self._general
        admins = await self._get(target.tenant)
        grants = await self._get(target.namespace) if target.namespace else None
        return Facts(self._general.rules, admins, grants)  # type: ignore[arg-type]

    async def _get(self, name: str) -> Known:
        if name in self._kept:
            return self._kept[name]
        task = self._reading.get(name)
        if task is None:
            task = self._reading[name] = asyncio.get_running_loop().create_task(self._read(name))
            task.add_done_callback(lambda done: self._was_read(name, done))
        # Several callers may wait for this read: the cancellation of one does not affect others.
        return await asyncio.shield(task)

    async def _read(self, name: str) -> Known:
        if "/" not in name:
            tenant = await self._resources.tenants.get(name)
            return None if tenant is None else frozenset(tenant.admin_roles)
        namespace = await self._resources.namespaces.get(name)
        return None if namespace is None else Grants(namespace.policies)

    def _was_read(self, name: str, task: asyncio.Task[Known]) -> None:
        failed = task.cancelled() or task.exception() is not None
        # If a change came meanwhile, this is not the newest, and another call may be reading.
        if self._reading.get(name) is not task:
            return
        del self._reading[name]
        if failed or self._end_watch is None:
            return
        self._drop(name)
        found = task.result()
        self._kept[name] = found
        self._size += _size(found)
        while self._size > self._most and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _changed(self, path: str) -> None:
        name = policies_at(path)
        self._reading.pop(name, None)
        self._drop(name)

    def _missed(self) -> None:
        for name in [*self._kept, *self._reading]:
            self._reading.pop(name, None)
            self._drop(name)

    def _drop(self, name: str) -> None:
        if name in self._kept:
            self._size -= _size(self._kept.pop(name))


def _size(known: Known) -> int:
    if known is None:
        return 1
    return 1 + (known.size if isinstance(known, Grants) else len(known))
