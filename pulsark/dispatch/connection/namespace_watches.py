"""The namespaces whose topics one client of Pulsar 5 follows.

A watch says what there is, and then what comes and goes. A client that reads slowly hears of many
changes at once, and of none for a topic that came and went meanwhile.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.loop.request_turns import pause
from pulsark.dispatch.scalable.limits import NAMESPACE_WATCHES_PER_CONNECTION_MAX
from pulsark.errors import ClientError, ServerError
from pulsark.limits import TOPIC_NAMES_PER_TURN
from pulsark.wire import pulsar_pb2 as pb
from pulsark.wire.layout_fields import added_frame, snapshot_frame
from pulsark.wire.topic_fields import TopicsField

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from pulsark.dispatch.connection.output import Output
    from pulsark.dispatch.topics.topic_lists import (
        TopicFeeds,
        TopicList,
        TopicSelector,
        TopicWatcher,
    )

Command = pb.BaseCommand

_HEAD_BYTES = 1024
"""More than a frame has beside its topics."""

_HASH_CHARS_MAX = 64
"""Longer than any that a client has from somewhere."""


class NamespaceWatch:
    """One namespace that a client follows."""

    __slots__ = ("_added", "_feeds", "_first", "_known", "_removed", "_tell", "_watcher", "closed",
                 "namespace", "watch_id")  # fmt: skip

    def __init__(
        self, tell: Callable[[NamespaceWatch], None], watch_id: int, namespace: str, known: str
    ) -> None:
        """``known`` is the hash of the topics that the client knows from before."""
        self.watch_id = watch_id
        self.namespace = namespace
        self.closed = False
        self._known = known[:_HASH_CHARS_MAX]
        self._tell = tell
        self._watcher: TopicWatcher | None = None
        self._feeds: TopicFeeds | None = None
        self._first: TopicList | None = None
        """What there was at first, until the client is told of it."""
        self._added: dict[str, None] = {}
        self._removed: dict[str, None] = {}

    async def open(self, feeds: TopicFeeds, selector: TopicSelector) -> None:
        """Find out what there is, or raise. The client is told of that afterwards."""
        watcher = await feeds.of(self.namespace).watch(selector, self._updated)
        if self.closed:
            watcher.close()
            return
        self._watcher, self._feeds = watcher, feeds
        self._first = watcher.found
        self._tell(self)

    def close(self) -> None:
        """The client hears of it no more."""
        self.closed = True
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        self._first = None
        self._added.clear()
        self._removed.clear()

    def _updated(self, new: Sequence[str], deleted: Sequence[str], _hash: str) -> None:
        if self.closed:
            return
        for topics, here, there in (
            (new, self._removed, self._added),
            (deleted, self._added, self._removed),
        ):
            for topic in topics:
                if topic in here:
                    del here[topic]
                else:
                    there[topic] = None
        self._tell(self)

    async def say(self, output: Output, frame_bytes_max: int) -> None:
        """Tell the client what it does not know yet."""
        if self._watcher is None or self._feeds is None:
            return  # what there was at first comes first
        first, self._first = self._first, None
        if first is not None and first.hash != self._known:
            make = snapshot_frame
            pieces = await self._feeds.encoded(first, TopicsField.SNAPSHOT)
            for topics in _frames(pieces, frame_bytes_max - _HEAD_BYTES):
                if not self.closed:
                    output.send_frame(make(self.watch_id, topics))
                make = added_frame
        while self._added or self._removed:
            change = Command(type=Command.WATCH_SCALABLE_TOPICS_UPDATE)
            update = change.watchScalableTopicsUpdate
            update.watch_id = self.watch_id
            update.diff.removed.extend(_taken(self._removed))
            update.diff.added.extend(_taken(self._added))
            output.send(change)
            await pause()


def _taken(topics: dict[str, None]) -> list[str]:
    """The first ones, which are told now."""
    taken = list(islice(topics, TOPIC_NAMES_PER_TURN))
    for topic in taken:
        del topics[topic]
    return taken


def _frames(pieces: list[bytes], frame_bytes_max: int) -> Iterator[list[bytes]]:
    """Pieces of a list, as many to a frame as fit; at least one frame."""
    frame: list[bytes] = []
    room = frame_bytes_max
    for piece in pieces:
        if frame and len(piece) > room:
            yield frame
            frame, room = [], frame_bytes_max
        frame.append(piece)
        room -= len(piece)
    yield frame


class NamespaceWatches:
    """The watches of one client, each by the id that the client gave it."""

    def __init__(
        self,
        output: Output,
        feeds: TopicFeeds,
        require: Callable[[str], Awaitable[None]],
        tell: Callable[[NamespaceWatch], None],
    ) -> None:
        """``tell`` lets a watch speak as soon as the client has read what it was told before.

        ``require`` raises ``ClientError`` for a namespace that does not exist.
        """
        self._output = output
        self._feeds = feeds
        self._require = require
        self._tell = tell
        self._watches: dict[int, NamespaceWatch] = {}
        self._opening = asyncio.Lock()
        """One at a time: what has to be read for them keeps those of other clients waiting."""

    def __len__(self) -> int:
        return len(self._watches)

    def all(self) -> list[NamespaceWatch]:
        """In no order."""
        return list(self._watches.values())

    def begin(self, watch_id: int, namespace: str, known: str) -> NamespaceWatch:
        """Begin a watch, or raise ``ClientError``. ``open`` is what follows.

        It is known at once, so that a client that gives it up meanwhile finds it.
        """
        self.drop(watch_id)
        most = NAMESPACE_WATCHES_PER_CONNECTION_MAX
        if len(self._watches) >= most:
            raise ClientError(
                ServerError.TooManyRequests, f"A connection may watch {most} namespaces at a time"
            )
        watch = self._watches[watch_id] = NamespaceWatch(self._tell, watch_id, namespace, known)
        return watch

    async def open(self, watch: NamespaceWatch, selector: TopicSelector) -> None:
        """Find out what there is, or raise."""
        try:
            async with self._opening:
                await self._require(watch.namespace)
                if not watch.closed:
                    await watch.open(self._feeds, selector)
        except BaseException:
            if self._watches.get(watch.watch_id) is watch:
                del self._watches[watch.watch_id]
            raise

    def drop(self, watch_id: int) -> None:
        """A client follows a namespace no more."""
        watch = self._watches.pop(watch_id, None)
        if watch is not None:
            watch.close()

    def refuse(self, watch_id: int, error: Exception) -> None:
        """A client may follow a namespace no more."""
        self.drop(watch_id)
        self._output.send(notices.watch_error(watch_id, error))

    def ends(self) -> list[Callable[[], None]]:
        """What ends each, when the client is gone."""
        watches, self._watches = self._watches, {}
        return [watch.close for watch in watches.values()]
