"""Settings of all brokers that were changed while they ran, as they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pulsark.errors import BadVersionError, CorruptMetadataError
from pulsark.metadata import records
from pulsark.metadata.paths import CONFIGURATION
from pulsark.metadata.store import ABSENT, MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

Values: TypeAlias = dict[str, str]


class ConfigurationRecord:
    """All of them in one record."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def get(self) -> Values:
        """By name their values as text."""
        found = await records.read(self._store, CONFIGURATION)
        return {} if found is None else _values(found)

    async def change(self, change: Callable[[Values], Values]) -> tuple[Values, Values]:
        """Apply ``change``, again if another writer was first; the values before and after it."""
        while True:
            found = await self._store.get(CONFIGURATION)
            before = {} if found is None else _values(records.decode(found))
            after = change(before)
            if after == before:
                return before, after
            version = ABSENT if found is None else found.version
            try:
                await self._store.put(CONFIGURATION, records.encode({"values": after}), version)
            except BadVersionError:
                continue  # another writer was first
            return before, after


def _values(record: records.Json) -> Values:
    found = record.get("values")
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise CorruptMetadataError(f"{CONFIGURATION} has no values that are texts")
    return found
