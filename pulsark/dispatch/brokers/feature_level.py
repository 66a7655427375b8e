"""Which formats the brokers of a cluster may write: only those that all of them can read.

Each program has a feature level: the number of steps that its formats have made. A broker
announces its level, and one value of the metadata store has the level of the cluster. A broker
that knows less does not start, so what that level brought may be written.

The level only rises, and only when every live broker knows the next one. This must not miss a
broker that starts at the same moment. It announces itself first, and then writes the level again,
unchanged. Whoever raises the level reads it, then the announcements, and writes at the version that
was read. If the announcement came too late to be seen, so did that write, and the raise fails and
is repeated; or the broker finds the new level and leaves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.brokers.registry import LiveBroker
from pulsark.errors import BadVersionError, ConfigError, CorruptMetadataError
from pulsark.limits import FEATURE_LEVEL_WAIT_SECONDS
from pulsark.metadata import records
from pulsark.metadata.paths import BROKERS, FEATURE_LEVEL_OF_CLUSTER, broker_path
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

FEATURE_LEVEL: Final = 2
"""What this program knows. Add one with the first format of a release that its predecessor cannot
read, and write that format only where ``FeatureLevels.allows`` it; until then write the old one."""

TYPED_FILES_LEVEL: Final = 2
"""From this level on, files of tables may have format 3: unions are structs, and columns widen."""

STATED_CHANGES_LEVEL: Final = 2
"""From this level on, table records say what an attach changes and which columns are indexed."""


class FeatureLevels:
    """The level of this program, and that of its cluster as it was read last."""

    def __init__(self, metadata: MetadataStore, clock: Clock, known: int = FEATURE_LEVEL) -> None:
        self._metadata = metadata
        self._clock = clock
        self.known = known
        self.cluster = 0
        """It may be higher by now: then this broker goes on with the old formats for a minute."""

    def allows(self, level: int) -> bool:
        """Whether formats of a level may be written."""
        return level <= self.cluster

    async def check(self) -> None:
        """``ConfigError`` if this program is too old for the cluster; it has read nothing else."""
        await self._read()

    async def join(self) -> None:
        """Stay in the cluster, after this broker was announced. ``ConfigError`` as above."""
        while True:
            version = await self._read()
            level = self.cluster
            if version == ABSENT:  # a new cluster, or one of programs that knew no levels
                level = min((each.feature_level for each in await self._announced()), default=0)
            try:
                await self._write(level, version)
            except BadVersionError:
                continue  # others start, too
            self.cluster = level
            return

    async def follow(self, *, leads: bool) -> None:
        """Read the level of the cluster. If this broker ``leads`` and all know more, raise it."""
        version = await self._read()
        if not leads or self.cluster >= self.known:
            return
        live = await self._announced()
        level = min((each.feature_level for each in live), default=0)
        youngest = max((each.started_ms for each in live), default=0)
        waited = self._clock.now_ms() - youngest >= FEATURE_LEVEL_WAIT_SECONDS * 1000
        if level <= self.cluster or not waited:
            return
        try:
            await self._write(level, version)
        except BadVersionError:
            return  # a broker started: the next round sees it
        log.info("the feature level of the cluster is %d: all brokers know it", level)
        self.cluster = level

    async def _read(self) -> int:
        found = await self._metadata.get(FEATURE_LEVEL_OF_CLUSTER)
        if found is None:
            return ABSENT
        self.cluster = records.decode(found)["level"]
        if self.cluster > self.known:
            raise ConfigError(
                f"this cluster has feature level {self.cluster}, and this program knows only "
                f"{self.known}: start the version of Pulsark that the other brokers have"
            )
        return found.version

    async def _write(self, level: int, version: int) -> None:
        value = records.encode({"level": level})
        await put_settled(self._metadata, FEATURE_LEVEL_OF_CLUSTER, value, version)

    async def _announced(self) -> list[LiveBroker]:
        """The announcements as they are stored now."""
        live = []
        for broker_id in await self._metadata.children(BROKERS):
            found = await self._metadata.get(broker_path(broker_id))
            if found is None:
                continue
            try:
                live.append(LiveBroker.decode(found.value))
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptMetadataError(
                    f"the announcement of broker {broker_id} cannot be read: {error!r}"
                ) from error
        return live
