"""The topics of a namespace, in order, for clients that ask for them or follow them.

One *feed* a namespace knows its topics and follows the metadata store; it is there while clients
use it, and for a while after that. What a pattern takes of them is found once, however many
clients ask with that pattern (or another *selector*), and so is its form on the wire. All of it is
done in turns: a hundred thousand topics are some tenths of a second.

What changed is gathered and told once the feed has looked at it, so a thousand topics created at
once are a few updates.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pulsark.dispatch.loop.turns import Pace, in_turns
from pulsark.dispatch.topics.topic_encodings import Encodings
from pulsark.errors import ClientError, ServerError, trace_of
from pulsark.limits import (
    TOPIC_FEED_LINGER_SECONDS,
    TOPIC_NAMES_PER_TURN,
    TOPIC_PATTERNS_KEPT_MAX,
)
from pulsark.metadata.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS, topic_below, topics_path
from pulsark.metadata.resources import is_system_topic
from pulsark.wire.hashes import TopicsHash
from pulsark.wire.topic_fields import TopicsField, topic_fields
from pulsark.wire.topic_name import TopicName

if TYPE_CHECKING:
    from collections.abc import Collection

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

    @property
    def encoded_bytes(self) -> int:
        """How much is kept of that."""
        return sum(len(part) for parts in self._encoded.values() for part in parts)

    def forget_bytes(self) -> None:
        """Keep none of it."""
        self._encoded.clear()

    async def changed(self, new: Iterable[str], deleted: set[str]) -> TopicList:
        """With some more, and without others."""
        topics = self.topics
        if deleted:
            parts = in_turns(_parts(topics), 1)
            topics = [topic async for part in parts for topic in part if topic not in deleted]
        # Two ascending runs are merged as fast as they are copied.
        return await TopicList.of(sorted([*topics, *sorted(new)]))

    def __contains__(self, topic: str) -> bool:
        index = bisect_left(self.topics, topic)
        return index < len(self.topics) and self.topics[index] == topic


def _parts(topics: list[str]) -> Iterable[list[str]]:
    step = TOPIC_NAMES_PER_TURN
    return (topics[start : start + step] for start in range(0, len(topics), step))


class Change(NamedTuple):
    """What happened to the topics of a namespace. A partition is a topic here."""

    new: Collection[str]
    deleted: Collection[str]
    looked_at: Collection[str]
    """Those, and all others whose records were written."""
    known: TopicList
    """What there is now."""


class TopicSelector(Protocol):
    """What a client wants to know of a namespace's topics."""

    @property
    def key(self) -> Hashable:
        """Equal for selectors that find the same."""

    @property
    def reads_records(self) -> bool:
        """Whether it looks at more than names."""

    async def find(self, known: TopicList) -> list[str]:
        """What it takes, in order. Raises ``PulsarkError``."""

    async def changes(self, found: TopicList, change: Change) -> tuple[list[str], list[str]]:
        """What it takes now beside ``found``, and what no more. Raises ``PulsarkError``."""


class ByPattern:
    """The topics and partitions whose names fit a pattern."""

    reads_records = False

    def __init__(self, pattern: TopicPattern) -> None:
        self._pattern = pattern

    @property
    def key(self) -> Hashable:
        """Its text."""
        return self._pattern.text

    async def find(self, known: TopicList) -> list[str]:
        """In turns."""
        return await self._select(known.topics)

    async def changes(self, found: TopicList, change: Change) -> tuple[list[str], list[str]]:
        """Changes of each topic or partition by itself."""
        more = await self._select(sorted(change.new))
        return more, await self._select(sorted(change.deleted))

    async def _select(self, topics: list[str]) -> list[str]:
        select, parts = self._pattern.select, in_turns(_parts(topics), 1)
        return [topic async for part in parts for topic in select(part)]


class TopicWatcher:
    """One client's view of a namespace: the topics that its selector takes."""

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
    """What a selector takes, and its watchers."""

    def __init__(self, selector: TopicSelector, found: TopicList) -> None:
        self.selector = selector
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
        self._selections: dict[Hashable, _Selection] = {}
        """By the key of the selector."""
        self._kept: dict[Hashable, None] = {}
        """Selectors that are remembered without a watcher, least recently used first."""
        self._changing = asyncio.Lock()
        """Held while changes are taken in. A selection joins in between."""
        self._by_name, self._by_record = asyncio.Lock(), asyncio.Lock()
        """Held while something is found for the first time. Reading records may take long."""
        self._missed: list[set[str]] = []
        """For each that is being found: what was looked at meanwhile."""
        self._users = 0
        self._linger: asyncio.TimerHandle | None = None
        self._ledgers = topics_path(MANAGED_LEDGERS, namespace)
        self._partitioned = topics_path(PARTITIONED_TOPICS, namespace)
        self._changed: dict[str, set[str]] = {self._ledgers: set(), self._partitioned: set()}
        self._unheard = False
        """Whether something changed that nobody has told."""
        self._checking: asyncio.Task[None] | None = None
        self._round: asyncio.Future[None] | None = None
        """Done once what is being looked at is known,"""
        self._next_round: asyncio.Future[None] | None = None
        """and once what has changed since is."""
        # Follow first and list then: what changes in between is looked at once more.
        self._ends = [
            metadata.watch(path, self._on_change, self._on_unheard) for path in self._changed
        ]
        self._listing = asyncio.get_running_loop().create_task(self._list())

    # -- users ---

    async def select(self, pattern: TopicPattern | None) -> TopicList:
        """The topics that a pattern takes, all without one. Raises ``PulsarkError``."""
        async with _Use(self):
            await self._up_to_date()
            if pattern is None:
                return self._all
            return (await self._selection(ByPattern(pattern))).found

    async def watch(self, selector: TopicSelector, updated: Update) -> TopicWatcher:
        """Select topics for a watcher, which is told of changes. Raises ``PulsarkError``."""
        async with _Use(self):
            await self._up_to_date()
            return TopicWatcher(self, await self._selection(selector), updated)

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
            # Clients can name any number of namespaces that do not exist.
            is_empty = failed or (self._listing.done() and not self._all.topics)
            seconds = 0 if is_empty else TOPIC_FEED_LINGER_SECONDS
            self._linger = loop.call_later(seconds, self.close)

    def unwatched(self, selection: _Selection) -> None:
        """A watcher left: an unwatched selection is remembered for a while."""
        if not selection.watchers:
            self._keep(selection.selector.key)

    def _keep(self, key: Hashable) -> None:
        kept = self._kept
        kept.pop(key, None)
        kept[key] = None
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

    async def _selection(self, selector: TopicSelector) -> _Selection:
        known = self._selections.get(selector.key)
        if known is not None:
            return known
        async with self._by_record if selector.reads_records else self._by_name:
            known = self._selections.get(selector.key)
            return known or await self._new_selection(selector)

    async def _new_selection(self, selector: TopicSelector) -> _Selection:
        missed: set[str] = set()
        self._missed.append(missed)
        try:
            before = self._all
            found = self._one_of(await TopicList.of(await selector.find(before)))
            async with self._changing:
                if missed:
                    new = {name for name in missed if name in self._all and name not in before}
                    deleted = {name for name in missed if name in before and name not in self._all}
                    change = Change(new, deleted, missed, self._all)
                    more, less = await selector.changes(found, change)
                    found = await found.changed(more, set(less))
                selection = self._selections[selector.key] = _Selection(selector, found)
                self._keep(selector.key)
                return selection
        finally:
            # By identity: another one may have missed the same.
            self._missed = [each for each in self._missed if each is not missed]

    def _one_of(self, found: TopicList) -> TopicList:
        """Equal lists are one: clients find the same by very many patterns."""
        for known in (self._all, *(each.found for each in self._selections.values())):
            if known.hash == found.hash and known.topics == found.topics:
                return known
        return found

    async def _list(self) -> None:
        self._all = await TopicList.of(await self._listed())

    async def _listed(self) -> list[str]:
        """The names of all topics; none as long as there is no such namespace."""
        try:
            return await self._catalog.list_topics(self.namespace)
        except ClientError as error:
            if error.code is not ServerError.TopicNotFound:
                raise
            return []

    # -- what changes ---

    def _on_change(self, path: str) -> None:
        parent, _, local = path.rpartition("/")
        changed = self._changed.get(parent)
        if changed is None:
            return
        changed.add(topic_below(self.namespace, local))
        self._look_soon()

    def _on_unheard(self) -> None:
        self._unheard = True
        self._look_soon()

    def _look_soon(self) -> None:
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check())

    async def _check(self) -> None:
        """Look at what changed until nothing did, and tell the watchers."""
        await asyncio.wait([self._listing])
        while self._unheard or any(self._changed.values()):
            names, bases = self._take_changed()
            unheard, self._unheard = self._unheard, False
            looked, self._round, self._next_round = self._next_round, self._next_round, None
            assert looked is not None
            try:
                if unheard:
                    names |= await self._possibly_changed()
                await self._look_at(names, bases)
            except Exception as error:
                log.warning(
                    "cannot list the topics of %s: %s",
                    self.namespace,
                    error,
                    exc_info=trace_of(error),
                )
                looked.set_exception(error)
                looked.exception()  # perhaps no request waits for it
                self._unheard |= unheard
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

    async def _possibly_changed(self) -> set[str]:
        """Topics that were not there when it was looked at last, or are not now."""
        there = set(await self._listed())
        known = set(self._all.topics)
        return there | known if self._reads_records() else there ^ known

    async def _look_at(self, names: set[str], bases: set[str]) -> None:
        """Which of these topics, and of the partitions of those, are there now."""
        looked_at = set(names)
        for base in bases:
            looked_at.update(self._known_partitions(base))
            looked_at.update(await self._catalog.partition_names(TopicName.parse(base)))
        new: set[str] = set()
        deleted: set[str] = set()
        async for topic in in_turns(looked_at):
            there = not is_system_topic(topic) and await self._catalog.exists(
                TopicName.parse(topic)
            )
            if there != (topic in self._all):
                (new if there else deleted).add(topic)
        async with self._changing:
            if new or deleted or self._missed or self._reads_records():
                await self._take_in(new, deleted, looked_at)

    def _reads_records(self) -> bool:
        return any(each.selector.reads_records for each in self._selections.values())

    def _known_partitions(self, base: str) -> list[str]:
        known, prefix = self._all.topics, f"{base}-partition-"
        return known[bisect_left(known, prefix) : bisect_left(known, f"{prefix}\U0010ffff")]

    async def _take_in(self, new: set[str], deleted: set[str], looked_at: set[str]) -> None:
        known = await self._all.changed(new, deleted) if new or deleted else self._all
        change = Change(new, deleted, looked_at, known)
        changed: list[tuple[_Selection, list[str], list[str]]] = []
        for key, selection in list(self._selections.items()):
            if not selection.watchers:
                # Found anew if a client asks again; or it went while others were looked at.
                self._selections.pop(key, None)
                self._kept.pop(key, None)
                continue
            more, less = await selection.selector.changes(selection.found, change)
            if more or less:
                changed.append((selection, more, less))
        self._all = known  # from here on nothing fails, so nothing is told twice
        for missed in self._missed:
            missed |= looked_at
        lists: dict[tuple[TopicList, tuple[str, ...], tuple[str, ...]], TopicList] = {}
        for selection, more, less in changed:
            key = selection.found, tuple(more), tuple(less)  # those that were one stay one
            if key not in lists:
                lists[key] = self._one_of(await selection.found.changed(more, set(less)))
            selection.found = lists[key]
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
    """The feeds of a broker."""

    def __init__(self, metadata: MetadataStore, catalog: TopicCatalog) -> None:
        self._metadata = metadata
        self._catalog = catalog
        self._feeds: dict[str, TopicFeed] = {}
        self._encodings = Encodings()

    async def encoded(self, topics: TopicList, field: TopicsField) -> list[bytes]:
        """The field of an answer with a list."""
        found = await topics.encoded(field)
        self._encodings.used(topics, topics.encoded_bytes)
        return found

    def of(self, namespace: str) -> TopicFeed:
        """The feed of a namespace, which need not exist."""
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
