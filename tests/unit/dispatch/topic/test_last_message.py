"""The last message of a topic that ends in very many markers."""

from __future__ import annotations

import asyncio

from pulsark.dispatch.topic.last_message import NOTHING, LastMessageFinder
from pulsark.limits import ENTRIES_PER_TURN_MAX
from pulsark.wire.message_id import MessageId
from pulsark.wire.position import Position
from tests.support.subscription_bench import LEDGER, FakeTopic

MARKERS = 3 * ENTRIES_PER_TURN_MAX


class CountingTopic(FakeTopic):
    """Says which entries were read; they are all at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.ledger.previous_position = self._before  # type: ignore[attr-defined]

    def _before(self, position: Position) -> Position:
        index = self.ledger.positions.index(position)
        return self.ledger.positions[index - 1] if index else Position(-1, -1)

    async def read(self, position: Position, max_entries: int, max_bytes: int):
        self.reads += 1
        return [self._entry(position)] if position in self.stored else []


def found_at(entry_id: int) -> MessageId:
    return MessageId(LEDGER, entry_id)


def test_what_is_known_is_not_looked_at_again_and_looking_takes_turns() -> None:
    async def run() -> None:
        topic = CountingTopic()
        finder = LastMessageFinder(topic)
        assert await finder.find() == NOTHING
        topic.publish()
        for _ in range(MARKERS):
            topic.publish(marker=True)
        looking = [asyncio.create_task(finder.find()) for _ in range(5)]
        longest = 0
        while not all(task.done() for task in looking):
            before = topic.reads
            await asyncio.sleep(0)
            longest = max(longest, topic.reads - before)
        assert [task.result() for task in looking] == [found_at(0)] * 5
        assert topic.reads == MARKERS + 1
        assert longest <= ENTRIES_PER_TURN_MAX
        topic.publish(marker=True)
        assert await finder.find() == found_at(0)
        assert topic.reads == MARKERS + 2
        topic.publish()
        assert await finder.find() == found_at(MARKERS + 2)
        assert topic.reads == MARKERS + 3

    asyncio.run(run())


def test_what_is_erased_or_trimmed_is_not_the_last_one_any_more() -> None:
    async def run() -> None:
        topic = CountingTopic()
        finder = LastMessageFinder(topic)
        first, second = topic.publish().position, topic.publish().position
        assert (await finder.find()).position == second
        topic.publish(marker=True)
        topic.stored[second] = topic.stored[topic.ledger.last_confirmed]  # erased
        finder.forget()
        assert (await finder.find()).position == first
        topic.stored.clear()
        finder.forget()
        assert await finder.find() == NOTHING

    asyncio.run(run())
