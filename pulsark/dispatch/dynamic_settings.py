"""How a broker follows the settings that are changed while it runs.

They are in the metadata store, the same for all brokers, above what each was started with. A
broker has them in force before it serves, and as soon as it hears of a change.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pulsark.config.dynamic import changed_by, take_over
from pulsark.dispatch.loop.followed_value import FollowedValue
from pulsark.errors import ConfigError
from pulsark.metadata.paths import CONFIGURATION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pulsark.config.settings import Settings
    from pulsark.metadata.configuration import ConfigurationRecord, Values
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)

_MEANWHILE = "settings stay as they are"


class DynamicSettings(FollowedValue):
    """The dynamic settings of one broker. They change its ``settings``."""

    def __init__(
        self,
        settings: Settings,
        metadata: MetadataStore,
        record: ConfigurationRecord,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """``changed`` sees to it that whatever was made of the settings before follows them."""
        super().__init__(metadata, CONFIGURATION, without=_MEANWHILE, meanwhile=_MEANWHILE)
        self._settings = settings
        self._started_with = dataclasses.replace(settings)
        self._record = record
        self._changed = changed
        self._is_behind = False
        """What was made of the settings does not follow them yet."""

    async def values(self) -> Values:
        """What was changed, as text."""
        return await self._record.get()

    async def set(self, name: str, text: str) -> tuple[Values, Values]:
        """Change one; what all were, and what they are. Raises ``ConfigError``."""
        changed_by(self._started_with, {name: text})
        changed = await self._record.change(lambda before: {**before, name: text})
        await self.refresh()
        return changed

    async def delete(self, name: str) -> tuple[Values, Values]:
        """Have one be again what each broker was started with; the same."""
        changed = await self._record.change(
            lambda before: {key: before[key] for key in before if key != name}
        )
        await self.refresh()
        return changed

    async def refresh(self) -> None:
        """Read what was changed, and have it in force."""
        while True:
            seen = self._changes
            texts = await self._record.get()
            if seen != self._changes:
                continue  # another one may have read what is newer
            self._is_behind |= take_over(self._settings, self._wanted(texts))
            if self._is_behind:
                await self._changed()
                self._is_behind = False
            if seen == self._changes:
                return

    def _wanted(self, texts: Values) -> Settings:
        """One that cannot be used here, of another version's, keeps no other from being used."""
        wanted = self._started_with
        for name in sorted(texts):
            try:
                wanted = changed_by(wanted, {name: texts[name]})
            except ConfigError as error:
                log.warning("a dynamic setting has no effect on this broker: %s", error)
        return wanted
