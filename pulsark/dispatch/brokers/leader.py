"""Elects one broker to do the work that must be done once per cluster.

When a session ends, two brokers may both believe they lead for a moment. Where that matters, a
compare-and-set decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, MetadataError
from pulsark.limits import METADATA_RETRY_SECONDS, METADATA_RETRY_SECONDS_MAX
from pulsark.metadata.paths import LEADER
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.brokers.registry import LiveBroker
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class Leader:
    """A broker that finds no leader tries to create the ephemeral value that names the leader."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._own: LiveBroker | None = None
        self._instance = ""
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._later: asyncio.TimerHandle | None = None
        self._pause = METADATA_RETRY_SECONDS
        self._end_watch: Callable[[], None] = lambda: None
        self.broker_id = ""
        """The last known leader; "" if there is none."""

    @property
    def is_here(self) -> bool:
        """Whether this broker certainly leads."""
        own = self._own
        return own is not None and self._instance == own.instance and self._metadata.session.is_sure

    async def start(self, own: LiveBroker) -> None:
        """Take part in the election."""
        self._own = own
        self._end_watch = self._metadata.watch(LEADER, self._changed, self._changed_unheard)
        self._changed_unheard()
        if self._looking is not None:
            await asyncio.shield(self._looking)

    def close(self) -> None:
        """Leave the election. This broker's leadership ends with its session."""
        self._end_watch()
        if self._looking is not None:
            self._looking.cancel()
        if self._later is not None:
            self._later.cancel()
        self._own = None

    def _changed(self, path: str) -> None:
        self._changed_unheard()

    def _changed_unheard(self) -> None:
        self._look_again = True
        if self._looking is None:
            self._looking = unattended(self._look(), "finding which broker leads")

    async def _look(self) -> None:
        try:
            while self._look_again and self._own is not None:
                self._look_again = False
                await self._find(self._own)
            self._pause = METADATA_RETRY_SECONDS
        except MetadataError as error:
            log.warning("cannot read which broker leads from %s: %s", LEADER, error)
            if not self._metadata.session.has_ended:
                # If nobody leads nobody changes that, so no watch would tell.
                loop = asyncio.get_running_loop()
                self._later = loop.call_later(self._pause, self._changed_unheard)
                self._pause = min(2 * self._pause, METADATA_RETRY_SECONDS_MAX)
        finally:
            self._looking = None

    async def _find(self, own: LiveBroker) -> None:
        found = await self._metadata.get(LEADER)
        if found is None:
            value = json.dumps(
                {
                    "version": 1,
                    "brokerId": own.broker_id,
                    "instance": own.instance,
                    "serviceUrl": own.urls.web or own.urls.web_tls,
                },
                separators=(",", ":"),
            ).encode()
            self.broker_id = self._instance = ""
            try:
                await put_settled(self._metadata, LEADER, value, ABSENT, ephemeral=True)
            except BadVersionError:
                self._look_again = True  # another broker was faster
                return
            self.broker_id, self._instance = own.broker_id, own.instance
            return
        try:
            leader = json.loads(found.value)
            self.broker_id, self._instance = str(leader["brokerId"]), str(leader["instance"])
        except (KeyError, TypeError, ValueError) as error:
            self.broker_id = self._instance = ""
            log.warning("cannot understand which broker leads: %r", error)
