"""The topics of a namespace, in order, for clients that ask for them or follow them.

One *feed* a namespace knows its topics and follows the metadata store; it is there while clients
use it, and for a while after that. What a pattern takes of them is found once, however many
clients ask with that pattern, and so is its form on the wire. All of it is done in turns: a hundred
thousand topics are some tenths of a second.

What changed is gathered and told once the feed has looked at it, so a thousand topics created at
once are a few updates.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import Pace, in_turns
from pulsark.dispatch.topics.topic_names import is_system
from pulsark.errors import trace_of
from pulsark.limits import (
    TOPIC_FEED_LINGER_SECONDS,
    TOPIC_NAMES_PER_TURN,
    TOPIC_PATTERNS_KEPT_MAX,
)
from pulsark.metadata.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS, topic_below, topics_path
from pulsark.wire.hashes import TopicsHash
from pulsark.wire.topic_fields import TopicsField, topic_fields
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.topic_pattern import TopicPattern
    from pulsark.metadata.store import MetadataStore

log = logging.getLogger(__name__)

Update = Callable[[list[str], list[str], str], None]
"""Told of new topics, deleted topics, and the hash of all that match now."""

RETRY_SECONDS = 1.0


class TopicList:
    """Topics in order, and the digest of them that clients compare. Never changes."""

    def __init__(self, topics: list[str], digest: str) -> None:
        self.topics = topics
        self.hash = digest
        self._encoded: dict[TopicsField, list[bytes]] = {}
        self._encoding = asyncio.Lock()

    @classmethod
    async def of(cls, topics: list[str]) -> TopicList:
        """The list of topics that are in order."""
        digest = TopicsHash()
        async for part in in_turns(_parts(topics), 1):
            digest.add(part)
        return cls(topics, digest.text)

    async def encoded(self, field: TopicsField) -> list[bytes]:
        """The field of an answer with all of them; made once for all clients."""
        async with self._encoding:
            found = self._encoded.get(field)
            if found is None:
                parts = in_turns(_parts(self.topics), 1)
                found = [topic_fields(field, part) async for part in parts]
                self._encoded[field] = found
            return found

    async def changed(self, new: Iterable[str], deleted: set[str]) -> TopicList:
        """With some more, and without others."""
        topics = self.topics
        if deleted:
            parts = in_turns(_parts(topics), 1)
            topics = [topic async for part in parts for topic in part if topic not in deleted]
        # Two ascending runs are merged as fast as they are copied.
        return await TopicList.of(sorted([*topics, *sorted(new)]))


def _parts(topics: list[str]) -> Iterable[list[str]]:
    step = TOPIC_NAMES_PER_TURN
    return (topics[start : start + step] for start in range(0, len(topics), step))


class TopicWatcher:
    """One client's view of a namespace: the topics that its pattern takes."""

    def __init__(self, feed: TopicFeed, selection: _Selection, updated: Update) -> None:
        self.found = selection.found
        """What there was when it began."""
        self.updated = updated
        self.namespace = feed.namespace
        self._feed = feed
        self._selection = selection
        selection.watchers[self] = None
        feed.take()

    def close(self) -> None:
        """Hear no more."""
        if self in self._selection.watchers:
            del self._selection.watchers[self]
            self._feed.unwatched(self._selection)
            self._feed.let_go()


class _Selection:
    """What a pattern takes, and its watchers."""

    def __init__(self, pattern: TopicPattern | None, found: TopicList) -> None:
        self.pattern = pattern
        self.found = found
        self.watchers: dict[TopicWatcher, None] = {}


class TopicFeed:
    """The topics of one namespace, kept up to date."""

    def __init__(
        self,
        namespace: str,
        metadata: MetadataStore,
        catalog: TopicCatalog,
        closed: Callable[[TopicFeed], None],
    ) -> None:
        self.namespace = namespace
        self._catalog = catalog
        self._closed = closed
        self._all: TopicList
        self._selections: dict[str, _Selection] = {}
        """By the text of the pattern."""
        self._kept: dict[str, None] = {}
        """Patterns that need no watcher to be remembered, those of the longest ago first."""
        self._changing = asyncio.Lock()
        """Held while something is selected and while changes are taken in."""
        self._users = 0
        self._linger: asyncio.TimerHandle | None = None
        self._ledgers = topics_path(MANAGED_LEDGERS, namespace)
        self._partitioned = topics_path(PARTITIONED_TOPICS, namespace)
        self._changed: dict[str, set[str]] = {self._ledgers: set(), self._partitioned: set()}
        self._checking: asyncio.Task[None] | None = None
        self._round: asyncio.Future[None] | None = None
        """Done once what is being looked at is known,"""
        self._next_round: asyncio.Future[None] | None = None
        """and once what has changed since is."""
        # Follow first and list then: what changes in between is looked at once more.
        self._ends = [metadata.watch(path, self._on_change) for path in self._changed]
        self._listing = asyncio.get_running_loop().create_task(self._list())

    # -- users ---

    async def select(self, pattern: TopicPattern | None) -> TopicList:
        """The topics that a pattern takes, all without one. Raises ``PulsarkError``."""
        async with _Use(self):
            await self._up_to_date()
            async with self._changing:
                return (await self._selection(pattern)).found

    async def watch(self, pattern: TopicPattern, updated: Update) -> TopicWatcher:
        """Select topics for a watcher, which is told of changes. Raises ``PulsarkError``."""
        async with _Use(self):
            await self._up_to_date()
            async with self._changing:
                return TopicWatcher(self, await self._selection(pattern), updated)

    def take(self) -> None:
        """A client begins to use it."""
        self._users += 1
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def let_go(self) -> None:
        """A client does not use it any more: it stays for a while."""
        self._users -= 1
        if not self._users and self._linger is None:
            loop = asyncio.get_running_loop()
            failed = self._listing.done() and (
                self._listing.cancelled() or self._listing.exception() is not None
            )
            seconds = 0 if failed else TOPIC_FEED_LINGER_SECONDS
            self._linger = loop.call_later(seconds, self.close)

    def unwatched(self, selection: _Selection) -> None:
        """A watcher left: an unwatched selection is remembered for a while."""
        if selection.pattern is not None and not selection.watchers:
            self._keep(selection.pattern.text)

    def _keep(self, text: str) -> None:
        kept = self._kept
        kept.pop(text, None)
        kept[text] = None
        if len(kept) > TOPIC_PATTERNS_KEPT_MAX:
            oldest = next(iter(kept))
            del kept[oldest]
            if not self._selections[oldest].watchers:
                del self._selections[oldest]

    def close(self) -> None:
        """Stop."""
        for end in self._ends:
            end()
        self._listing.cancel()
        if self._checking is not None:
            self._checking.cancel()
        if self._linger is not None:
            self._linger.cancel()
        self._closed(self)

    # -- what there is ---

    async def _up_to_date(self) -> None:
        """Wait until what was changed before is known."""
        await asyncio.shield(self._listing)
        if (waiting := self._next_round or self._round) is not None:
            await asyncio.shield(waiting)

    async def _selection(self, pattern: TopicPattern | None) -> _Selection:
        if pattern is None:
            return _Selection(None, self._all)
        selection = self._selections.get(pattern.text)
        if selection is None:
            found: list[str] = []
            async for part in in_turns(_parts(self._all.topics), 1):
                found += pattern.select(part)
            selection = _Selection(pattern, await TopicList.of(found))
            self._selections[pattern.text] = selection
            self._keep(pattern.text)
        return selection

    async def _list(self) -> None:
        self._all = await TopicList.of(await self._catalog.list_topics(self.namespace))

    # -- what changes ---

    def _on_change(self, path: str) -> None:
        parent, _, local = path.rpartition("/")
        changed = self._changed.get(parent)
        if changed is None:
            return
        changed.add(topic_below(self.namespace, local))
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        """Look at what changed until nothing did, and tell the watchers."""
        await asyncio.wait([self._listing])
        while any(self._changed.values()):
            names, bases = self._take_changed()
            looked, self._round, self._next_round = self._next_round, self._next_round, None
            assert looked is not None
            try:
                await self._look_at(names, bases)
            except Exception as error:
                log.warning(
                    "the topics of %s cannot be listed: %s",
                    self.namespace,
                    error,
                    exc_info=trace_of(error),
                )
                looked.set_exception(error)
                looked.exception()  # perhaps no request waits for it
                self._changed[self._ledgers] |= names
                self._changed[self._partitioned] |= bases
                self._next_round = self._next_round or asyncio.get_running_loop().create_future()
                await asyncio.sleep(RETRY_SECONDS)
            else:
                looked.set_result(None)
            self._round = None
        self._checking = None

    def _take_changed(self) -> tuple[set[str], set[str]]:
        taken = self._changed[self._ledgers], self._changed[self._partitioned]
        self._changed = {self._ledgers: set(), self._partitioned: set()}
        return taken

    async def _look_at(self, names: set[str], bases: set[str]) -> None:
        """Which of these topics, and of the partitions of those, are there now."""
        looked_at = set(names)
        for base in bases:
            looked_at.update(self._known_partitions(base))
            looked_at.update(await self._catalog.partition_names(TopicName.parse(base)))
        new: set[str] = set()
        deleted: set[str] = set()
        async for topic in in_turns(looked_at):
            there = not is_system(topic) and await self._catalog.exists(TopicName.parse(topic))
            if there != self._knows(topic):
                (new if there else deleted).add(topic)
        if new or deleted:
            async with self._changing:
                await self._take_in(new, deleted)

    def _knows(self, topic: str) -> bool:
        known = self._all.topics
        index = bisect_left(known, topic)
        return index < len(known) and known[index] == topic

    def _known_partitions(self, base: str) -> list[str]:
        known, prefix = self._all.topics, f"{base}-partition-"
        return known[bisect_left(known, prefix) : bisect_left(known, f"{prefix}\U0010ffff")]

    async def _take_in(self, new: set[str], deleted: set[str]) -> None:
        self._all = await self._all.changed(new, deleted)
        for text, selection in list(self._selections.items()):
            if not selection.watchers:
                # Found anew if a client asks again; or it went while others were told.
                self._selections.pop(text, None)
                self._kept.pop(text, None)
                continue
            assert selection.pattern is not None
            more, less = [
                [
                    topic
                    async for part in in_turns(_parts(sorted(topics)), 1)
                    for topic in selection.pattern.select(part)
                ]
                for topics in (new, deleted)
            ]
            if more or less:
                selection.found = await selection.found.changed(more, set(less))
                await self._tell(selection, more, less)

    async def _tell(self, selection: _Selection, new: list[str], deleted: list[str]) -> None:
        pace = Pace(max(1, TOPIC_NAMES_PER_TURN // (len(new) + len(deleted))))
        for watcher in list(selection.watchers):
            if watcher in selection.watchers:
                watcher.updated(new, deleted, selection.found.hash)
            await pace.step()


class _Use:
    """The feed is in use while a client waits for an answer."""

    def __init__(self, feed: TopicFeed) -> None:
        self._feed = feed

    async def __aenter__(self) -> None:
        self._feed.take()

    async def __aexit__(self, *_: object) -> None:
        self._feed.let_go()


class TopicFeeds:
    """Those of a broker."""

    def __init__(self, metadata: MetadataStore, catalog: TopicCatalog) -> None:
        self._metadata = metadata
        self._catalog = catalog
        self._feeds: dict[str, TopicFeed] = {}

    def of(self, namespace: str) -> TopicFeed:
        """That of a namespace, whether or not there is such a one."""
        feed = self._feeds.get(namespace)
        if feed is None:
            feed = self._feeds[namespace] = TopicFeed(
                namespace, self._metadata, self._catalog, self._forget
            )
        return feed

    def _forget(self, feed: TopicFeed) -> None:
        if self._feeds.get(feed.namespace) is feed:
            del self._feeds[feed.namespace]

    def close(self) -> None:
        """Follow nothing any more."""
        for feed in list(self._feeds.values()):
            feed.close()
