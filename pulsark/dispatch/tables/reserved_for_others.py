"""What this broker does in its partitions for bulk publishes of the brokers that have the tables.

See ``far_partitions``. What is reserved here is freed without them, too: after a while without a
word the partitions are loaded anew, which asks the table what became of the ledgers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from pulsark.dispatch.topics.topic_names import check_clients_may_publish
from pulsark.errors import ClientError, NotAttachedError, PulsarkError, ServerError, trace_of
from pulsark.storage.managed_ledger.reservations import Reservations
from pulsark.tasks import unattended

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    _Step = Callable[[], Coroutine[Any, Any, Any]]

    from pulsark.dispatch.topic.topic import Topic
    from pulsark.dispatch.topics.registry import Topics
    from pulsark.runtime import Clock
    from pulsark.storage.managed_ledger.reservations import Wanted
    from pulsark.wire.topic_name import TopicName

T = TypeVar("T")

log = logging.getLogger(__name__)

RESERVED_SECONDS = 60.0
"""How long ledgers stay reserved if nothing more is heard of them."""

HELD_SECONDS = 15.0
"""How long appends wait to hear what became of them: longer than a step of a publish takes."""

LOOK_SECONDS = 0.5
"""So often it is looked whether the process that reserved is still there."""

RESERVATIONS_MAX = 1000
"""Publishes at a time that have something reserved here."""


def check_writable(topic: Topic) -> None:
    """``ClientError`` if a client could not publish messages to a topic now as they are."""
    check_clients_may_publish(topic.name)
    if topic.policies.encryption_required:
        raise ClientError(
            ServerError.NotAllowedError,
            f"Encryption is required in {topic.name}, and files are not encrypted: publish with a "
            "client that encrypts them",
        )
    topic.check_writable()
    topic.backlog.check_admission()


class ReservedForOthers:
    """The other side of ``FarPartitions``."""

    def __init__(self, clock: Clock, topics: Topics, is_live: Callable[[str], bool]) -> None:
        """``is_live``: whether the process of a broker is there, as far as is known."""
        self._clock = clock
        self._topics = topics
        self._is_live = is_live
        self._held: dict[str, _Held] = {}

    async def check_writable(self, base: TopicName, partitions: Sequence[int]) -> None:
        """See ``PartitionCalls``. Afterwards they are loaded, which ``reserve`` needs."""
        for partition in partitions:
            check_writable(await self._topics.load(base.with_partition(partition), create=True))

    async def reserve(
        self, base: TopicName, asker: str, token: str, wanted: Wanted, rows: Mapping[int, int]
    ) -> Mapping[int, Sequence[int]]:
        """See ``PartitionCalls``; ``asker`` is the process of the table's broker.

        It loads nothing: a partition with ledgers that are reserved would ask the table's broker,
        which does not answer before its publish is over.
        """
        for former in list(self._held.values()):
            if former.base == base:  # a table has one publish at a time: this one is over
                former.task.cancel()
                await asyncio.wait((former.task,))
        topics: dict[int, Topic] = {}
        for partition in wanted:
            name = base.with_partition(partition)
            topic = self._topics.get_loaded(name)
            if topic is None or topic.closed:
                raise NotAttachedError(f"{name} is not loaded here; try again")
            topics[partition] = topic
        if token in self._held or len(self._held) >= RESERVATIONS_MAX:
            raise NotAttachedError("there are too many bulk publishes just now; try again")
        held = _Held(self._clock, base, topics, rows, lambda: self._is_live(asker))
        self._held[token] = held
        held.task.add_done_callback(lambda task: self._ended(token, task))
        return await held.ask(lambda: held.add(wanted))

    async def hold_appends(self, token: str) -> None:
        """See ``PartitionCalls``."""
        held = self._held.get(token)
        if held is None:
            raise _unknown()
        await held.ask(held.hold_appends)

    async def decide(self, token: str, exist: bool | None) -> None:
        """See ``PartitionCalls``."""
        held = self._held.get(token)
        if held is not None:
            await held.ask(lambda: held.decide(exist))

    async def close(self) -> None:
        """The partitions' next owners ask what became of the ledgers."""
        tasks = [held.task for held in self._held.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, token: str, task: asyncio.Task[None]) -> None:
        held = self._held.pop(token)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a reservation failed: %r", held.base, error, exc_info=trace_of(error))


class _Held:
    """Partitions in which ledgers are reserved. A step that was begun goes to its end."""

    def __init__(
        self,
        clock: Clock,
        base: TopicName,
        topics: Mapping[int, Topic],
        rows: Mapping[int, int],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self.base = base
        self._is_wanted = is_wanted
        self._topics = topics
        self._rows = rows
        ledgers = {partition: topic.ledger for partition, topic in topics.items()}
        self._reservations = Reservations(ledgers)
        self._steps: asyncio.Queue[tuple[_Step, asyncio.Future[Any]]] = asyncio.Queue()
        self._seconds = RESERVED_SECONDS
        self._is_decided = False
        self.task = unattended(self._run(), f"{base}: a bulk publish")

    # -- steps ---

    async def add(self, wanted: Wanted) -> Mapping[int, Sequence[int]]:
        return await self._reservations.add(wanted)

    async def hold_appends(self) -> None:
        self._seconds = HELD_SECONDS  # some may wait even if others cannot be closed
        await self._reservations.close_ledgers()

    async def decide(self, exist: bool | None) -> None:
        await self._reservations.decide(exist)
        self._is_decided = True
        for partition, topic in self._topics.items() if exist else ():
            topic.messages_in += self._rows.get(partition, 0)

    # -- one after the other ---

    async def ask(self, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Have a step done after those before it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._steps.put_nowait((step, answer))
        await asyncio.wait((answer, self.task), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise _unknown()
        return answer.result()

    async def _run(self) -> None:
        try:
            while not self._is_decided:
                step, answer = await self._next()
                try:
                    answer.set_result(await step())
                except PulsarkError as error:
                    answer.set_exception(error)
        except TimeoutError:
            log.warning("%s: no news of a bulk publish, asking its table", self.base)
        finally:
            await self._reservations.leave()

    async def _next(self) -> tuple[_Step, asyncio.Future[Any]]:
        """The next step; ``TimeoutError``: there will be none."""
        until = self._clock.monotonic() + self._seconds
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    return await self._steps.get()
            except TimeoutError:
                if not self._is_wanted() or self._clock.monotonic() >= until:
                    raise


def _unknown() -> NotAttachedError:
    return NotAttachedError("the reservation is over; try again")
