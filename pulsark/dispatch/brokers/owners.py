"""Which broker has a bundle, as far as the metadata store says so. Reads, and claims nothing.

An owner that was read is kept until a change of it is heard, so it may be a little old. That sends
a client to a broker that refuses it, and it asks again.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.metadata.paths import (
    BUNDLE_OWNERS,
    assigned_bundle_path,
    bundle_owner_at,
    bundle_owner_path,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.metadata.store import MetadataStore, Versioned

ASSIGNED_SECONDS = 30.0
"""After this time anybody may claim a bundle that a broker was told to claim, and has not."""


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """What a claim of a bundle says, in Pulsar's form with two names more."""

    broker_id: str
    instance: str
    """Of the process."""
    urls: ServiceUrls
    leaving: bool = False
    """The bundle is being unloaded: another broker will have it soon."""

    def encode(self) -> bytes:
        """As it is in the metadata store."""
        urls = self.urls
        claim = {"nativeUrl": urls.broker, "httpUrl": urls.web, "disabled": self.leaving}
        if urls.broker_tls:
            claim["nativeUrlTls"] = urls.broker_tls
        if urls.web_tls:
            claim["httpUrlTls"] = urls.web_tls
        return json.dumps({**claim, "brokerId": self.broker_id, "instance": self.instance}).encode()

    @classmethod
    def decode(cls, value: bytes) -> BundleOwner:
        """The inverse; it names no port of Flight."""
        found = json.loads(value)
        urls = ServiceUrls(
            broker=found["nativeUrl"],
            web=found["httpUrl"],
            broker_tls=found.get("nativeUrlTls", ""),
            web_tls=found.get("httpUrlTls", ""),
        )
        broker_id = found.get("brokerId", urls.broker_id)
        return cls(broker_id, found.get("instance", ""), urls, found["disabled"])


@dataclass(frozen=True, slots=True)
class Assigned:
    """A broker was told to claim a bundle."""

    broker_id: str
    since_ms: int

    def encode(self) -> bytes:
        """As it is in the metadata store."""
        return json.dumps(
            {"version": 1, "broker": self.broker_id, "since": self.since_ms},
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, found: Versioned) -> Assigned:
        """The inverse."""
        record = json.loads(found.value)
        return cls(record["broker"], record["since"])

    def holds(self, now_ms: int) -> bool:
        """Whether that is not too long ago for it to be still on its way."""
        return 0 <= now_ms - self.since_ms <= ASSIGNED_SECONDS * 1000


class BundleOwners:
    """Those of all bundles that somebody asks for."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: dict[str, BundleOwner] = {}
        self._changes = 0
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._end_watch: Callable[[], None] | None = None

    def start(self) -> None:
        """Keep what is read, and notice changes from now on."""
        self._end_watch = self._metadata.watch(BUNDLE_OWNERS, self._changed, self._missed)

    def close(self) -> None:
        """Keep nothing any more."""
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        self._missed()

    async def of(self, bundle: str) -> BundleOwner | None:
        """Who has a bundle, if anybody has."""
        known = self._known.get(bundle)
        if known is not None:
            return known
        seen = self._changes
        found = await self._metadata.get(bundle_owner_path(bundle))
        if found is None:
            return None
        owner = BundleOwner.decode(found.value)
        if seen == self._changes and self._end_watch is not None:
            self._known[bundle] = owner
        return owner

    async def assigned(self, bundle: str) -> Assigned | None:
        """Who was told to claim a bundle, whenever that was."""
        found = await self._metadata.get(assigned_bundle_path(bundle))
        return None if found is None else Assigned.decode(found)

    @contextmanager
    def changes_of(self, bundle: str) -> Iterator[asyncio.Event]:
        """An event that is set when the owner of a bundle changes, or may have changed."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(bundle, [])
        waiting.append(event)
        try:
            yield event
        finally:
            waiting.remove(event)
            if not waiting:
                self._waiting.pop(bundle, None)

    def _changed(self, path: str) -> None:
        self._changes += 1
        bundle = bundle_owner_at(path)
        self._known.pop(bundle, None)
        for event in self._waiting.get(bundle, ()):
            event.set()

    def _missed(self) -> None:
        self._changes += 1
        self._known.clear()
        for events in self._waiting.values():
            for event in events:
                event.set()
