"""Clients that want to hear of new and deleted topics: regex subscriptions.

One *feed* a namespace knows its topics and follows the metadata store, so that watchers of the
same namespace share the work; it is there while somebody watches. What changed is gathered and
told once the feed has looked at it, so a thousand topics created at once are a few updates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pulsark.dispatch.topic_admin import is_system
from pulsark.dispatch.topic_pattern import TopicPattern
from pulsark.errors import PulsarkError
from pulsark.wire.hashes import topics_hash
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.topic_admin import TopicAdmin
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)

Update = Callable[[list[str], list[str], str], None]
"""Told of new topics, deleted topics, and the hash of all that match now."""

RETRY_SECONDS = 1.0


class TopicWatcher:
    """One client's view of a namespace: the topics that its pattern takes."""

    def __init__(
        self, feed: _Feed, pattern: TopicPattern, topics: list[str], updated: Update
    ) -> None:
        self.topics = set(topics)
        self._feed = feed
        self._pattern = pattern
        self._updated = updated

    @property
    def hash(self) -> str:
        """The digest that clients compare."""
        return topics_hash(self.topics)

    def tell(self, new: set[str], deleted: set[str]) -> None:
        """The namespace changed."""
        new = set(self._pattern.select(new)) - self.topics
        deleted = deleted & self.topics
        if new or deleted:
            self.topics = (self.topics | new) - deleted
            self._updated(sorted(new), sorted(deleted), self.hash)

    def close(self) -> None:
        """Hear no more."""
        self._feed.remove(self)


class TopicWatchers:
    """All watchers of a broker."""

    def __init__(self, metadata: MetadataStore, topic_admin: TopicAdmin) -> None:
        self._metadata = metadata
        self._topic_admin = topic_admin
        self._feeds: dict[str, _Feed] = {}

    async def watch(self, namespace: str, pattern: TopicPattern, updated: Update) -> TopicWatcher:
        """Begin to watch; the watcher's ``topics`` are those there are now."""
        while True:
            feed = self._feeds.get(namespace)
            if feed is None:
                feed = self._feeds[namespace] = _Feed(
                    namespace, self._metadata, self._topic_admin, self._forget
                )
            try:
                await feed.ready()
            except BaseException:
                feed.close_if_unused()
                raise
            if self._feeds.get(namespace) is feed:
                return feed.add(pattern, updated)

    def _forget(self, feed: _Feed) -> None:
        if self._feeds.get(feed.namespace) is feed:
            del self._feeds[feed.namespace]

    def close(self) -> None:
        """Follow nothing any more."""
        for feed in list(self._feeds.values()):
            feed.close()


class _Feed:
    """The topics of one namespace, kept up to date."""

    def __init__(
        self,
        namespace: str,
        metadata: MetadataStore,
        topic_admin: TopicAdmin,
        closed: Callable[[_Feed], None],
    ) -> None:
        self.namespace = namespace
        self._topic_admin = topic_admin
        self._closed = closed
        self._watchers: set[TopicWatcher] = set()
        self._topics: set[str] = set()
        self._waiting = 0
        self._ledgers = f"/managed-ledgers/{namespace}/persistent"
        self._partitioned = f"/admin/partitioned-topics/{namespace}/persistent"
        self._changed: dict[str, set[str]] = {self._ledgers: set(), self._partitioned: set()}
        self._checking: asyncio.Task[None] | None = None
        # Follow first and list then: what changes in between is looked at once more.
        self._ends = [metadata.watch(path, self._on_change) for path in self._changed]
        self._listing = asyncio.get_running_loop().create_task(self._list())

    async def ready(self) -> None:
        """Wait until the topics are known. Raises ``PulsarkError``."""
        self._waiting += 1
        try:
            await asyncio.shield(self._listing)
        finally:
            self._waiting -= 1

    def add(self, pattern: TopicPattern, updated: Update) -> TopicWatcher:
        """A watcher of the topics that are known."""
        watcher = TopicWatcher(self, pattern, pattern.select(self._topics), updated)
        self._watchers.add(watcher)
        return watcher

    def remove(self, watcher: TopicWatcher) -> None:
        """A watcher ended."""
        self._watchers.discard(watcher)
        self.close_if_unused()

    def close_if_unused(self) -> None:
        """Stop to follow topics that nobody needs to know."""
        if not self._watchers and not self._waiting:
            self.close()

    def close(self) -> None:
        """Stop."""
        for end in self._ends:
            end()
        self._listing.cancel()
        if self._checking is not None:
            self._checking.cancel()
        self._closed(self)

    async def _list(self) -> None:
        self._topics = set(await self._topic_admin.list_topics(self.namespace))

    def _on_change(self, path: str) -> None:
        parent, _, local = path.rpartition("/")
        changed = self._changed.get(parent)
        if changed is None:
            return
        changed.add(f"persistent://{self.namespace}/{unquote(local)}")
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        """Look at what changed until nothing did, and tell the watchers."""
        await asyncio.wait([self._listing])
        while any(self._changed.values()):
            names, bases = self._take_changed()
            try:
                await self._look_at(names, bases)
            except PulsarkError as error:
                log.warning("topics of %s: %s", self.namespace, error)
                self._changed[self._ledgers] |= names
                self._changed[self._partitioned] |= bases
                await asyncio.sleep(RETRY_SECONDS)
        self._checking = None

    def _take_changed(self) -> tuple[set[str], set[str]]:
        taken = self._changed[self._ledgers], self._changed[self._partitioned]
        self._changed = {self._ledgers: set(), self._partitioned: set()}
        return taken

    async def _look_at(self, names: set[str], bases: set[str]) -> None:
        """Which of these topics, and of the partitions of those, are there now."""
        looked_at = set(names)
        if bases:
            looked_at |= {t for t in self._topics if t.rpartition("-partition-")[0] in bases}
        for base in bases:
            looked_at.update(await self._topic_admin.partition_names(TopicName.parse(base)))
        present = {
            topic
            for topic in looked_at
            if not is_system(topic) and await self._topic_admin.exists(TopicName.parse(topic))
        }
        new = present - self._topics
        deleted = (looked_at & self._topics) - present
        self._topics = (self._topics | new) - deleted
        for watcher in list(self._watchers):
            watcher.tell(new, deleted)
