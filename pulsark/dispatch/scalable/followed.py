"""The layouts that somebody uses, kept up to date."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.loop.turns import Pace
from pulsark.dispatch.scalable.layouts import Layout, check_has_layout, first_layout
from pulsark.dispatch.scalable.limits import LAYOUT_RETRY_SECONDS
from pulsark.errors import ClientError, PulsarkError, ServerError
from pulsark.metadata.paths import PARTITIONED_TOPICS, topic_at
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pulsark.dispatch.topics.creation import TopicCreation
    from pulsark.metadata.store import MetadataStore
    from pulsark.runtime import Clock
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class User(Protocol):
    """Who uses a layout."""

    def layout_changed(self) -> None:
        """There is a later one."""


class FollowedTopic:
    """The layout of one topic, and who uses it."""

    __slots__ = (
        "_looking", "_owner", "_task", "_telling", "_untold", "changed", "layout", "name", "users",
    )  # fmt: skip

    def __init__(self, name: TopicName, owner: FollowedTopics) -> None:
        self.name = name
        self.layout: Layout | None = None
        """``None`` until it is known."""
        self.users: dict[User, None] = {}
        self.changed = True
        """Whether there may be a later one than is known."""
        self._owner = owner
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._untold: dict[User, None] = {}
        """Users who have not heard of the layout yet."""
        self._telling: asyncio.Task[None] | None = None

    def leave(self, user: User) -> None:
        """Somebody uses it no more."""
        self.users.pop(user, None)
        if not self.users:
            self.stop()
            self._owner.forget(self)

    def stop(self) -> None:
        """Follow it no more."""
        for task in (self._task, self._telling):
            if task is not None:
                task.cancel()

    def look_later(self) -> None:
        """Its number of partitions may be another one."""
        self.changed = True
        if self._task is None or self._task.done():
            self._task = unattended(self._look_until_known(), f"{self.name}: its layout")

    async def look(self, *, create: bool) -> None:
        """Find out what its layout is; raises ``PulsarkError``. Users are told of a later one."""
        async with self._looking:
            self.changed = True
            while self.changed:
                self.changed = False
                try:
                    await self._take(await self._owner.partitions(self.name, create=create))
                except BaseException:
                    self.changed = True
                    raise

    async def _take(self, partitions: int) -> None:
        known = self.layout
        if known is None:
            self.layout = first_layout(self.name, partitions, self._owner.now_ms())
            return
        if partitions == known.partitions:
            return
        later = known.after(partitions)
        await self._owner.prepare(self.name, later)
        self.layout = later
        self._untold.update(self.users)
        # Not in the caller's task: it may be a client's request, which ends with its connection.
        if self._telling is None or self._telling.done():
            self._telling = unattended(self._tell(), f"{self.name}: telling its layout")

    async def _tell(self) -> None:
        pace = Pace()
        while self._untold:
            user = next(iter(self._untold))
            del self._untold[user]
            if user in self.users:
                user.layout_changed()
            await pace.step()

    async def _look_until_known(self) -> None:
        while self.changed:
            try:
                await self.look(create=False)
            except ClientError as error:
                if error.code == ServerError.TopicNotFound:
                    return  # it was deleted: its clients hear of that as all others do
                log.warning("the layout of %s cannot be taken up: %s", self.name, error)
            except PulsarkError as error:
                log.warning("the layout of %s cannot be taken up: %s", self.name, error)
            else:
                return
            await asyncio.sleep(LAYOUT_RETRY_SECONDS)


class FollowedTopics:
    """The followed topics of a broker. They watch the metadata store while there are any."""

    def __init__(
        self,
        metadata: MetadataStore,
        creation: TopicCreation,
        clock: Clock,
        prepare: Callable[[TopicName, Layout], Awaitable[None]],
    ) -> None:
        """``prepare`` is awaited before anybody is told of a later layout."""
        self.now_ms = clock.now_ms
        self.prepare = prepare
        self._metadata = metadata
        self._creation = creation
        self._topics: dict[str, FollowedTopic] = {}
        self._end_watch: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._topics)

    def all(self) -> Iterable[FollowedTopic]:
        """In no order."""
        return self._topics.values()

    def get(self, name: str) -> FollowedTopic | None:
        """A topic that somebody uses."""
        return self._topics.get(name)

    async def follow(self, name: TopicName, user: User, *, create: bool) -> FollowedTopic:
        """Use the layout of a topic, until ``leave``. Raises ``PulsarkError``.

        A topic that is not there yet has a layout if its first client may make it: ``create``.
        """
        check_has_layout(name)
        topic = self._topics.get(str(name))
        if topic is None:
            if self._end_watch is None:
                self._end_watch = self._metadata.watch(
                    PARTITIONED_TOPICS, self._on_change, self._on_missed
                )
            topic = self._topics[str(name)] = FollowedTopic(name, self)
        topic.users[user] = None
        try:
            await topic.look(create=create)
        except BaseException:
            topic.leave(user)
            raise
        return topic

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has; ``ClientError`` if it is not there."""
        return await self._creation.partition_count(name, create=create)

    def forget(self, topic: FollowedTopic) -> None:
        """Nobody uses it any more."""
        if self._topics.get(str(topic.name)) is topic:
            del self._topics[str(topic.name)]
        if not self._topics:
            self.close()

    def close(self) -> None:
        """Follow nothing any more."""
        for topic in self._topics.values():
            topic.stop()
        self._topics.clear()
        if self._end_watch is not None:
            self._end_watch()
            self._end_watch = None

    def _on_change(self, path: str) -> None:
        try:
            topic = self._topics.get(topic_at(PARTITIONED_TOPICS, path))
        except ValueError:
            return
        if topic is not None:
            topic.look_later()

    def _on_missed(self) -> None:
        for topic in self._topics.values():
            topic.look_later()
