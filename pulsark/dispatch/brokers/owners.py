"""Reads from the metadata store which broker owns a bundle. Claims nothing.

Owners are cached until a watch reports a change, so an answer may be out of date. Then the client
reaches a broker that refuses it, and looks the topic up again.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsark.dispatch.model.service_urls import ServiceUrls
from pulsark.errors import CorruptMetadataError
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
"""How long a bundle stays reserved for the broker that it was assigned to."""


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """The claim of a bundle: Pulsar's document plus ``brokerId`` and ``instance``."""

    broker_id: str
    instance: str
    """The id of the broker's process."""
    urls: ServiceUrls
    leaving: bool = False
    """The broker is unloading the bundle; another one will own it soon."""

    def encode(self) -> bytes:
        """The form in the metadata store."""
        urls = self.urls
        claim = {"nativeUrl": urls.broker, "httpUrl": urls.web, "disabled": self.leaving}
        if urls.broker_tls:
            claim["nativeUrlTls"] = urls.broker_tls
        if urls.web_tls:
            claim["httpUrlTls"] = urls.web_tls
        return json.dumps({**claim, "brokerId": self.broker_id, "instance": self.instance}).encode()

    @classmethod
    def decode(cls, value: bytes) -> BundleOwner:
        """The inverse of ``encode``; ``CorruptMetadataError``. A claim has no Flight port."""
        try:
            found = json.loads(value)
            urls = ServiceUrls(
                broker=found["nativeUrl"],
                web=found["httpUrl"],
                broker_tls=found.get("nativeUrlTls", ""),
                web_tls=found.get("httpUrlTls", ""),
            )
            broker_id = found.get("brokerId", urls.broker_id)
            return cls(broker_id, found.get("instance", ""), urls, found["disabled"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptMetadataError(
                f"the claim of a bundle cannot be read: {error!r}"
            ) from error


@dataclass(frozen=True, slots=True)
class Assigned:
    """A bundle that was assigned to a broker, which has not claimed it yet."""

    broker_id: str
    since_ms: int

    def encode(self) -> bytes:
        """The form in the metadata store."""
        return json.dumps(
            {"version": 1, "broker": self.broker_id, "since": self.since_ms},
            separators=(",", ":"),
        ).encode()

    @classmethod
    def decode(cls, found: Versioned) -> Assigned:
        """The inverse of ``encode``; what cannot be read names nobody, and can be replaced."""
        try:
            record = json.loads(found.value)
            return cls(str(record["broker"]), int(record["since"]))
        except (ValueError, KeyError, TypeError):
            return cls("", 0)

    def holds(self, now_ms: int) -> bool:
        """Whether the assignment is still valid."""
        return 0 <= now_ms - self.since_ms <= ASSIGNED_SECONDS * 1000


class BundleOwners:
    """The owners of all bundles, read on demand."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._known: dict[str, BundleOwner] = {}
        self._changes = 0
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._end_watch: Callable[[], None] | None = None

    def start(self) -> None:
        """Cache owners from now on, and watch for changes."""
        self._end_watch = self._metadata.watch(BUNDLE_OWNERS, self._changed, self._missed)

    def close(self) -> None:
        """Stop caching."""
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None
        self._missed()

    async def of(self, bundle: str) -> BundleOwner | None:
        """The owner of a bundle, if it has one."""
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
        """The last assignment of a bundle, however old."""
        found = await self._metadata.get(assigned_bundle_path(bundle))
        return None if found is None else Assigned.decode(found)

    @contextmanager
    def changes_of(self, bundle: str) -> Iterator[asyncio.Event]:
        """An event that is set when the owner of a bundle may have changed."""
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
