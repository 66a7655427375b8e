"""Racks of bookies: the copies of a ledger go to bookies of different racks.

The value is Pulsar's: ``{group: {bookie: {"rack": ..., "hostname": ...}}}``, without a version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsark.errors import BadVersionError, CorruptMetadataError
from pulsark.limits import BOOKIE_TEXT_CHARS_MAX
from pulsark.metadata.paths import BOOKIES
from pulsark.metadata.records import DoesNotExistError, InvalidResourceError
from pulsark.metadata.store import ABSENT, MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Groups: TypeAlias = dict[str, dict[str, dict[str, Any]]]
"""By group and by bookie what was said of each bookie."""


class BookieRacks:
    """The racks of a cluster's bookies, in one value, so that they change together."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self) -> Groups:
        """All that was set."""
        found = await self._store.get(BOOKIES)
        return {} if found is None else decode_racks(found.value)

    async def put(self, bookie: str, group: str, info: Mapping[str, Any]) -> tuple[Groups, Groups]:
        """Set the rack of a bookie, in one group only; all before and after it.

        ``InvalidResourceError`` for a rack that no placement could use.
        """
        kept = _checked(bookie, group, info)

        def change(before: Groups) -> Groups:
            after = _without(before, bookie)
            after[group] = {**after.get(group, {}), bookie: kept}
            return after

        return await self._change(change)

    async def delete(self, bookie: str) -> tuple[Groups, Groups]:
        """Forget the rack of a bookie; all before and after it. ``DoesNotExistError``."""

        def change(before: Groups) -> Groups:
            if info_of(before, bookie) is None:
                raise DoesNotExistError(f"Bookie address not found: {bookie[:200]}")
            return _without(before, bookie)

        return await self._change(change)

    async def _change(self, change: Callable[[Groups], Groups]) -> tuple[Groups, Groups]:
        while True:
            found = await self._store.get(BOOKIES)
            before = {} if found is None else decode_racks(found.value)
            after = change(before)
            value = json.dumps(after, separators=(",", ":"), sort_keys=True).encode()
            try:
                await self._store.put(BOOKIES, value, ABSENT if found is None else found.version)
            except BadVersionError:
                continue  # another writer was first
            return before, after


def decode_racks(value: bytes) -> Groups:
    """The inverse of what is stored. ``CorruptMetadataError``."""
    try:
        found = json.loads(value)
        return {
            group: {bookie: dict(info) for bookie, info in bookies.items()}
            for group, bookies in found.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptMetadataError(f"the racks in {BOOKIES} cannot be read: {error}") from error


def info_of(groups: Groups, bookie: str) -> dict[str, Any] | None:
    """What was said of a bookie."""
    return next((bookies[bookie] for bookies in groups.values() if bookie in bookies), None)


def racks_of(groups: Groups) -> dict[str, str]:
    """By bookie its rack, like ``/rack-1``, of those that have one."""
    return {
        bookie: f"/{rack}"
        for bookies in groups.values()
        for bookie, info in bookies.items()
        if isinstance(info.get("rack"), str) and (rack := info["rack"].strip("/ "))
    }


def _checked(bookie: str, group: str, info: Mapping[str, Any]) -> dict[str, Any]:
    rack, host = info.get("rack"), info.get("hostname")
    if not bookie or not group:
        raise InvalidResourceError("The bookie or its group is missing")
    if not isinstance(rack, str) or not rack.strip("/ "):
        raise InvalidResourceError("The rack is missing; it is a name like /rack-1")
    if "/" in rack.strip("/ "):
        raise InvalidResourceError("A rack is one name like /rack-1: there are no regions")
    if host is not None and not isinstance(host, str):
        raise InvalidResourceError("The hostname is no text")
    if max(map(len, (bookie, group, rack, host or ""))) > BOOKIE_TEXT_CHARS_MAX:
        raise InvalidResourceError(
            f"Bookie, group, rack and hostname have at most {BOOKIE_TEXT_CHARS_MAX} characters each"
        )
    return {"rack": rack, "hostname": host}


def _without(groups: Groups, bookie: str) -> Groups:
    left = {
        group: {each: bookies[each] for each in bookies if each != bookie}
        for group, bookies in groups.items()
    }
    return {group: bookies for group, bookies in left.items() if bookies}
