"""The end of topics, partitioned or not. ``remains`` has what goes with them, and in what order."""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pulsark.dispatch.loop.turns import in_turns
from pulsark.errors import ClientError, ServerError
from pulsark.limits import ENDED_TOPICS_MAX
from pulsark.metadata.records import DoesNotExistError, InUseError
from pulsark.security.effects import Changed, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pulsark.dispatch.model.interfaces import AnyTopic
    from pulsark.dispatch.peers.topics_elsewhere import TopicsElsewhere
    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.catalog import TopicCatalog
    from pulsark.dispatch.topics.non_persistent_topics import NonPersistentTopics
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.dispatch.topics.remains import Remains
    from pulsark.dispatch.topics.topic_making import TopicMaking
    from pulsark.metadata.resources import Resources
    from pulsark.wire.position import Position
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class EndedTopics:
    """The last entries of the topics that this broker deleted lately; in memory only.

    A Spark query asks whether it had read all of a topic. If the broker has forgotten, the query
    fails: so a flood of deletions costs nobody a message.
    """

    def __init__(self, most: int = ENDED_TOPICS_MAX) -> None:
        self._most = most
        self._last: OrderedDict[tuple[str, str], Position] = OrderedDict()

    def add(self, topic: Topic) -> None:
        """Remember where a topic ended, once nothing is appended to it any more."""
        self._last[str(topic.name), topic.ledger.topic_id] = topic.ledger.last_confirmed
        if len(self._last) > self._most:
            self._last.popitem(last=False)

    def last_entry(self, name: TopicName, topic_id: str) -> Position | None:
        """Return the last entry that a deleted topic ever had (-1:-1: it had none), or None."""
        return self._last.get((str(name), topic_id))


class TopicDeletion:
    """Deletes the topics of a broker."""

    def __init__(
        self,
        resources: Resources,
        catalog: TopicCatalog,
        topics: Topics,
        non_persistent: NonPersistentTopics,
        remains: Remains,
        making: TopicMaking,
        elsewhere: Callable[[], TopicsElsewhere | None] = lambda: None,
    ) -> None:
        """``elsewhere``: the topics of other brokers, where there are some."""
        self._resources = resources
        self._catalog = catalog
        self._topics = topics
        self._non_persistent = non_persistent
        self._remains = remains
        self._making = making
        self._elsewhere = elsewhere
        self.ended = EndedTopics()

    async def delete_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete one topic or partition with its data and subscriptions.

        What an earlier attempt did not come to is done.
        """
        self._making.forget(name)
        elsewhere = self._elsewhere()
        if elsewhere is not None and await elsewhere.delete(name, force=force):
            return
        async with self._topics.ending(name):
            if not name.is_persistent:
                await self._delete_non_persistent(name, force=force)
                return
            is_there = await self._catalog.is_made(name)
            if is_there or self._topics.is_loading(name):
                topic = await self._topics.load_to_delete(name)
                if topic.is_used and not force:
                    raise _in_use(name)
                await self._delete_loaded(topic)
                report(Changed.TOPIC_DELETED, name)
            elif not await self._remains.finish_deletion(name) and not await self._catalog.exists(
                name
            ):
                raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")

    async def delete_loaded(self, topic: Topic, is_due: Callable[[Topic], bool]) -> bool:
        """Delete a topic in memory, unless it was unloaded or deleted just now.

        ``is_due`` is asked once no other request ends it: clients may have come until then. From
        there on they are told to come again.
        """
        self._making.forget(topic.name)
        async with self._topics.ending(topic.name):
            if topic.closed or not is_due(topic):
                return False
            await self._delete_loaded(topic)
            return True

    async def _delete_loaded(self, topic: Topic) -> None:
        try:
            topic.disconnect()  # before anything is awaited: what is confirmed now would be lost
            try:
                await self._remains.doom_table(topic.name)
                await topic.begin_deletion()
                self.ended.add(topic)
            except BaseException:
                await topic.close()  # it may stay: the next request loads it anew
                raise
            await self._remains.delete_shared(topic.name)
            await topic.delete()
            await self._remains.delete_table(topic.name)
        finally:
            self._topics.forget(topic)

    async def go_on_with(self, name: TopicName) -> bool:
        """Bring the deletion of a topic to its end, with partitions or without; whether one was
        under way. Making a topic begins with it."""
        found = await self._go_on_with_partitions(name)
        if not await self._catalog.is_made(name) and await self._catalog.is_stored(name):
            async with self._topics.ending(name):
                found |= await self._remains.finish_deletion(name)
        return found

    async def _delete_non_persistent(self, name: TopicName, *, force: bool) -> None:
        """Delete one that is in memory, or what one left that was there before a restart."""
        topic = self._non_persistent.get(name)
        if topic is None:
            await self._non_persistent.close(name)  # it may be on its way into memory
            if await self._resources.partitioned_topics.get(name) is not None or not (
                await self._catalog.exists(name) or await self._remains.has_any_set(name)
            ):
                raise ClientError(ServerError.TopicNotFound, f"Topic {name} does not exist")
        elif topic.is_used and not force:
            raise _in_use(name)
        if name.partition >= 0:
            await self._non_persistent.close(name)
            return
        with self._topics.refusing(name):
            await self._non_persistent.close(name)
            await self._remains.delete_shared(name)

    async def delete_partitioned_topic(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its partitions, or go on with it."""
        self._making.forget(name)
        async with self._topics.ending(name):
            found = await self._resources.partitioned_topics.record(name)
            if found is None:
                raise ClientError(
                    ServerError.TopicNotFound, f"Partitioned topic {name} does not exist"
                )
            with self._topics.refusing(name):
                if not found.deleting:
                    await self._begin_partitioned(name, found.partitions, force=force)
                    report(Changed.TOPIC_DELETED, name)
                await self._finish_partitioned(name, found.partitions)

    async def delete_partitioned_if_empty(self, name: TopicName) -> None:
        """Delete a partitioned topic of which no partition is stored or in memory."""
        if self._topics.is_refused(name):
            return
        async with self._topics.ending(name):
            with self._topics.refusing(name):  # from here on no partition is made
                found = await self._resources.partitioned_topics.get(name)
                if found is None:
                    return
                async for partition in in_turns(name.partitions(found.partitions)):
                    if self._topics.is_loading(partition) or await self._catalog.is_made(partition):
                        return
                log.info("%s has only inactive partitions: deleting it, as its policy says", name)
                await self._begin_partitioned(name, found.partitions, force=True)
                await self._finish_partitioned(name, found.partitions)

    async def _go_on_with_partitions(self, name: TopicName) -> bool:
        """Go on where the deletion of a topic with partitions stopped; whether there was one."""
        records = self._resources.partitioned_topics
        found = await records.record(name)
        if found is None or not found.deleting:
            return False
        async with self._topics.ending(name):
            found = await records.record(name)  # another request may have gone on with it
            if found is not None and found.deleting:
                with self._topics.refusing(name):
                    await self._finish_partitioned(name, found.partitions)
        return True

    async def _begin_partitioned(self, name: TopicName, partitions: int, *, force: bool) -> None:
        """Mark a topic as deleted, if ``force`` or it is unused; ``InUseError``."""
        leaving: list[AnyTopic] = []
        elsewhere = None if force else self._elsewhere()
        try:
            async for partition in in_turns(name.partitions(partitions)):
                topic = self._topics.get(partition)
                if topic is None and self._topics.is_loading(partition):  # a client was faster
                    topic = await self._topics.load_to_delete(partition)
                if topic is None:
                    # Its clients can still come until the deletion is noted; then they lose it.
                    if elsewhere is not None and await elsewhere.is_used(partition):
                        raise _in_use(partition)
                    continue
                leaving.append(topic)
                topic.is_leaving = True
                if topic.is_used and not force:
                    raise _in_use(partition)
            await self._remains.doom_table(name)
            await self._resources.partitioned_topics.begin_delete(name)
        except BaseException:
            for topic in leaving:
                topic.is_leaving = False
            raise

    async def _finish_partitioned(self, name: TopicName, partitions: int) -> None:
        """Delete what a topic has that is marked."""
        elsewhere = self._elsewhere()
        async for partition in in_turns(name.partitions(partitions)):
            if elsewhere is not None and await elsewhere.serves(partition):
                # It may be loading it just now, even if nothing is stored.
                with suppress_not_found():
                    await elsewhere.delete(partition, force=True)
            if self._topics.is_loading(partition) or await self._catalog.is_stored(partition):
                await self.delete_topic(partition, force=True)
            await self._non_persistent.close(partition)
        await self._remains.doom_table(name)
        await self._remains.delete_shared(name)
        await self._resources.partitioned_topics.delete(name)
        await self._remains.delete_table(name)


@contextmanager
def suppress_not_found() -> Iterator[None]:
    """What is to be deleted may be gone."""
    try:
        yield
    except DoesNotExistError as error:
        log.debug("another broker was first: %s", error)
    except ClientError as error:
        if error.code is not ServerError.TopicNotFound:
            raise


def _in_use(name: TopicName) -> InUseError:
    return InUseError(f"Topic {name} has connected producers or consumers")
