"""The live brokers. Each announces itself by an ephemeral value, and watches those of the others.

This list may be out of date: a broker that has just died is listed until its session expires. So it
only says which broker to ask, and where to send clients; it decides nothing by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pulsark.dispatch.brokers.load import LoadReport
from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import BadVersionError, MetadataError, OutcomeUnknownError
from pulsark.limits import METADATA_RETRY_SECONDS, METADATA_RETRY_SECONDS_MAX
from pulsark.metadata.changes import Check
from pulsark.metadata.paths import BROKERS, broker_path
from pulsark.metadata.settled import put_settled
from pulsark.metadata.store import ABSENT
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)

ATTEMPTS = 10

_URLS = (
    "pulsarServiceUrl",
    "webServiceUrl",
    "flightUrl",
    "pulsarServiceUrlTls",
    "webServiceUrlTls",
    "flightUrlTls",
)
"""The keys of ``ServiceUrls``, in its order."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """The announcement of a broker."""

    broker_id: str
    """``host:port`` of its admin API, as in Pulsar. A successor process has the same id."""
    instance: str
    """The id of the process."""
    urls: ServiceUrls
    started_ms: int = 0
    program: str = ""
    """The version of Pulsark."""
    persistent: bool = True
    """Whether it serves persistent topics."""
    non_persistent: bool = True
    load: LoadReport = field(default_factory=LoadReport)
    feature_level: int = 0
    """What its program knows (``feature_level``); 0 of a program without levels."""

    def serves(self, *, persistent: bool) -> bool:
        """Whether it serves topics of a kind."""
        return self.persistent if persistent else self.non_persistent

    def encode(self) -> bytes:
        """The form in the metadata store."""
        found: dict[str, Any] = {
            "version": 1,
            "brokerId": self.broker_id,
            "instance": self.instance,
            **{name: url for name, url in zip(_URLS, self.urls, strict=True) if url},
            "persistentTopicsEnabled": self.persistent,
            "nonPersistentTopicsEnabled": self.non_persistent,
            "startTimestamp": self.started_ms,
            "brokerVersion": self.program,
            "featureLevel": self.feature_level,
            "load": self.load.as_json(),
        }
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> LiveBroker:
        """The inverse of ``encode``."""
        found = json.loads(value)
        return cls(
            found["brokerId"],
            found["instance"],
            ServiceUrls(*(found.get(name, "") for name in _URLS)),
            found["startTimestamp"],
            found["brokerVersion"],
            found["persistentTopicsEnabled"],
            found["nonPersistentTopicsEnabled"],
            LoadReport.from_json(found["load"]),
            found.get("featureLevel", 0),
        )


class BrokerRegistry:
    """The live brokers, this one among them from ``announce`` on."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._own: LiveBroker | None = None
        self._version = ABSENT
        self._telling = asyncio.Lock()
        """Held while the announcement changes."""
        self._live: dict[str, LiveBroker] = {}
        self._stale: set[str] = set()
        """Ids of brokers to read again; "" for all. One task reads, in order."""
        self._reading: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._pause = METADATA_RETRY_SECONDS
        self._failed = False
        """Whether the last read failed, as the log has said."""
        self._end_watch: Callable[[], None] = lambda: None
        self._told_of = ""
        """The process that has this one's name now, if the log has it already."""
        self.had_company = False
        """Whether this broker has ever seen another one."""

    # -- this broker ---

    async def announce(self, own: LiveBroker) -> None:
        """Announce this broker, and follow the others.

        It replaces the announcement of an earlier process, whose session is about to end.
        """
        path = broker_path(own.broker_id)
        for _ in range(ATTEMPTS):
            found = await self._metadata.get(path)
            if found is not None:
                with suppress(BadVersionError):
                    await self._metadata.delete(path, found.version)
            with suppress(BadVersionError):
                self._version = await put_settled(
                    self._metadata, path, own.encode(), ABSENT, ephemeral=True
                )
                break
        else:
            raise MetadataError(f"another live process announces the broker {own.broker_id}")
        self._own = own
        await self.follow()

    async def follow(self) -> None:
        """Watch the live brokers from now on. ``MetadataError`` if they cannot be read: who does
        not know of others would take itself for the only one."""
        self._end_watch()
        self._end_watch = self._metadata.watch(BROKERS, self._changed, self._missed)
        self._missed()
        if self._reading is not None:
            await asyncio.shield(self._reading)
        if self._stale and self._reading is None:
            self.close()
            raise MetadataError("cannot read which brokers are alive")

    async def report(self, load: LoadReport) -> None:
        """Announce the load of this broker."""
        async with self._telling:
            if self._own is None:
                return
            told = replace(self._own, load=load)
            path = broker_path(told.broker_id)
            try:
                self._version = await self._metadata.put(
                    path, told.encode(), self._version, ephemeral=True
                )
            except (BadVersionError, OutcomeUnknownError):
                if self._own is None:
                    return  # who retires looks itself
                # An earlier report, or this one, was stored without an answer: the next one knows.
                found = await self._metadata.get(path)
                if found is not None and LiveBroker.decode(found.value).instance == told.instance:
                    self._version = found.version
                return
            if self._own is not None:
                self._own = told

    async def retire(self) -> None:
        """Remove the announcement before the broker stops, so that it gets no more clients."""
        own, self._own = self._own, None
        if own is None:
            return
        path = broker_path(own.broker_id)
        try:
            async with self._telling:
                if not self._metadata.session.is_sure:
                    raise MetadataError("the metadata store was not heard of")
                # A report may have been stored without an answer.
                found = await self._metadata.get(path)
                if found is not None and LiveBroker.decode(found.value).instance == own.instance:
                    await self._metadata.delete(path, found.version)
        except (MetadataError, ValueError, KeyError, TypeError) as error:
            log.debug("%s leaves with its session: %s", own.broker_id, error)

    def close(self) -> None:
        """Stop following the others."""
        self._end_watch()
        if self._later is not None:
            self._later.cancel()
        if self._reading is not None:
            self._reading.cancel()

    # -- all of them ---

    @property
    def own(self) -> LiveBroker | None:
        """This broker's announcement."""
        return self._own

    @property
    def own_id(self) -> str:
        """The id of this broker; "" before it is announced."""
        return "" if self._own is None else self._own.broker_id

    @property
    def check(self) -> Check | None:
        """Holds only while this process is the announced one; ``None`` before ``announce``."""
        return None if self._own is None else Check(broker_path(self.own_id), self._version)

    @property
    def live(self) -> Mapping[str, LiveBroker]:
        """The live brokers, by id."""
        return self._live

    @property
    def is_alone(self) -> bool:
        """Whether no other broker is known."""
        return not self._live.keys() - {self.own_id}

    def get(self, broker_id: str) -> LiveBroker | None:
        """A live broker."""
        return self._live.get(broker_id)

    # -- following ---

    def _changed(self, path: str) -> None:
        broker_id = path.removeprefix(f"{BROKERS}/")
        self._stale.add(broker_id)
        self._read_soon()

    def _missed(self) -> None:
        self._stale.add("")
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading is None:
            self._reading = unattended(self._read_stale(), "reading which brokers live")

    async def _read_stale(self) -> None:
        try:
            while self._stale:
                if "" in self._stale:
                    self._stale.clear()
                    await self._read_all()
                else:
                    await self._read(self._stale.pop())
            self._pause = METADATA_RETRY_SECONDS
            if self._failed:
                self._failed = False
                log.warning("which brokers are alive can be read again")
        except MetadataError as error:
            self._failed = True
            log.warning("cannot read which brokers are alive from the metadata store: %s", error)
            self._stale.add("")
            if not self._metadata.session.has_ended:
                loop = asyncio.get_running_loop()
                self._later = loop.call_later(self._pause, self._read_soon)
                self._pause = min(2 * self._pause, METADATA_RETRY_SECONDS_MAX)
        finally:
            self._reading = None

    async def _read_all(self) -> None:
        ids = await self._metadata.children(BROKERS)
        for broker_id in self._live.keys() - set(ids):
            del self._live[broker_id]
        for broker_id in ids:
            await self._read(broker_id)

    async def _read(self, broker_id: str) -> None:
        found = await self._metadata.get(broker_path(broker_id))
        self.had_company |= broker_id != self.own_id and found is not None
        self._live.pop(broker_id, None)
        if found is not None:
            try:
                self._live[broker_id] = broker = LiveBroker.decode(found.value)
                self._look_for_same_name(broker)
            except (ValueError, KeyError, TypeError) as error:
                log.warning("cannot understand the announcement of broker %s: %r", broker_id, error)

    def _look_for_same_name(self, found: LiveBroker) -> None:
        """A successor has the name of the process before it; but this one lives."""
        own = self._own
        if own is None or found.broker_id != own.broker_id:
            return
        if found.instance in (own.instance, self._told_of):
            return
        self._told_of = found.instance
        log.error(
            "another process (%s) has announced itself as broker %s, so this one gets no more "
            "topics. Give each broker an advertisedAddress of its own (or, on one machine, a "
            "webServicePort), and start this one again",
            found.instance, found.broker_id,
        )  # fmt: skip
