"""Resource groups: limits that the namespaces in a group share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pulsark.errors import BadVersionError
from pulsark.metadata import records
from pulsark.metadata.paths import RESOURCE_GROUPS, resource_group_path
from pulsark.metadata.store import ABSENT, MetadataStore
from pulsark.wire.topic_name import check_name_part

if TYPE_CHECKING:
    from collections.abc import Mapping

RESOURCE_GROUP: Final = "resource_group_name"
"""The policy of a namespace that names its group."""

GROUP_LIMITS: Final = (
    "publishRateInMsgs",
    "publishRateInBytes",
    "dispatchRateInMsgs",
    "dispatchRateInBytes",
)
"""The limits of a group, as in Pulsar; -1 is no limit. Only the first two have an effect there and
here."""


class ResourceGroups:
    """The resource groups of the instance."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list(self) -> list[str]:
        """Names, sorted."""
        return await self._store.children(RESOURCE_GROUPS)

    async def get(self, name: str) -> dict[str, int] | None:
        """All limits of a group."""
        found = await records.read(self._store, resource_group_path(name))
        return None if found is None else {key: int(found[key]) for key in GROUP_LIMITS}

    async def put(self, name: str, limits: Mapping[str, int]) -> None:
        """Add a group, or change the given limits. A limit that was never given is -1."""
        check_name_part("resource group", name)
        path = resource_group_path(name)
        while True:
            found = await self._store.get(path)
            record = dict.fromkeys(GROUP_LIMITS, -1) if found is None else records.decode(found)
            version = ABSENT if found is None else found.version
            try:
                await self._store.put(path, records.encode({**record, **limits}), version)
            except BadVersionError:
                continue  # another writer was first: keep its other limits
            return

    async def delete(self, name: str) -> None:
        """Remove a group. Raises ``DoesNotExistError``."""
        await records.delete(self._store, resource_group_path(name), f"Resource group {name}")
