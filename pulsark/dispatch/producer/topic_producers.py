"""The producers of one topic: one for each name, side by side or one alone."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Protocol

from pulsark.dispatch.model.producer_access import (
    Access,
    AccessMode,
    access,
    check_epoch,
    next_epoch,
)
from pulsark.errors import ClientError, PulsarkError, ServerError, internal_error
from pulsark.rates.publish_limit import NO_LIMIT

if TYPE_CHECKING:
    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.policies.policies import TopicPolicies
    from pulsark.rates.throttle import Throttle
    from pulsark.wire.topic_name import TopicName

log = logging.getLogger(__name__)


class Admitting(Protocol):
    """The topic, as its producers see it."""

    name: TopicName
    closed: bool
    policies: TopicPolicies
    throttle: Throttle | None

    @property
    def topic_epoch(self) -> int | None:
        """The epoch of the last producer that had the topic for itself, if there was one."""

    async def set_topic_epoch(self, epoch: int) -> None:
        """Keep a new one, as durably as the topic keeps anything."""

    def check_writable(self) -> None:
        """Raise the error with which a new producer is refused, if it must be."""

    async def producer_joined(self, producer: Producer) -> None:
        """A producer has its name. Returns when it may publish; raises if it may not."""

    def producer_left(self, producer: Producer) -> None:
        """No producer has this name any more."""


class TopicProducers:
    """Admits producers, and remembers which ones wait to be the only one.

    ``by_name`` are those that are connected. While the epoch of a new holder is made durable it
    is the holder already, but not among them.
    """

    def __init__(self, topic: Admitting) -> None:
        self.by_name: dict[str, Producer] = {}
        self.waiting: deque[Producer] = deque()
        self._topic = topic
        self._holder: Producer | None = None
        self._claimed: int | None = None
        """The epoch of a new holder until it is durable: its predecessors are fenced already."""
        self._granting = asyncio.Lock()
        self._promotions: set[asyncio.Task[None]] = set()

    @property
    def any(self) -> bool:
        """Whether anybody publishes, or would."""
        return bool(self.by_name or self.waiting or self._holder is not None)

    async def add(self, producer: Producer) -> bool:
        """Admit a producer, or raise ``ClientError``.

        Says whether it is ready. If not it waits, and ``producer.decided`` is called some time,
        unless it is removed before. Its connection knows of it before anybody else does.
        """
        producer.connection.holdings.add_producer(producer)
        try:
            return await self._add(producer)
        except BaseException:
            self.remove(producer)
            raise

    async def _add(self, producer: Producer) -> bool:
        self._topic.check_writable()
        if producer.access_mode is not AccessMode.ExclusiveWithFencing:  # which replaces all
            await self._replace_dead(producer)
            self._topic.check_writable()
        if producer.closed:
            raise _taken()
        granted = access(
            producer.access_mode,
            producer.topic_epoch,
            self._epoch,
            holder=None if self._holder is None else self._holder.name,
            waiting=bool(self.waiting),
            connected=bool(self.by_name),
        )
        if granted is Access.WAIT:
            self.waiting.append(producer)
            return False
        if granted is Access.SHARED:
            if producer.name in self.by_name:
                raise ClientError(
                    ServerError.ProducerBusy,
                    f"Producer with name '{producer.name}' is already connected to topic",
                )
            most = self._topic.policies.max_producers
            if 0 < most <= len(self.by_name):
                raise ClientError(
                    ServerError.ProducerBusy,
                    f"The topic reached its limit of {most} producers",
                )
            self._check_same_address(producer.connection.host)
            producer.topic_epoch = self._topic.topic_epoch
            await self._enter(producer)
            return True
        self._clear(_taken())
        self._hold(producer)
        await self._grant(producer)
        return True

    def _check_same_address(self, host: str) -> None:
        """Refuse a producer that would be one too many of its address."""
        most = self._topic.policies.max_same_address_producers
        if most > 0 and most <= sum(p.connection.host == host for p in self.by_name.values()):
            raise ClientError(
                ServerError.ProducerBusy,
                f"The topic reached its limit of {most} producers from one address",
            )

    @property
    def _epoch(self) -> int | None:
        """The epoch of the last holder, whether or not it is durable yet."""
        known = [e for e in (self._topic.topic_epoch, self._claimed) if e is not None]
        return max(known, default=None)

    def _hold(self, producer: Producer) -> None:
        """The topic is a producer's own from now on. Former holders that wait, wait in vain."""
        self._holder = producer
        self._claimed = claimed = next_epoch(producer.topic_epoch, self._epoch)
        for other in list(self.waiting):
            if other.topic_epoch is not None and other.topic_epoch < claimed:
                self.waiting.remove(other)
                self._refuse(other, _taken())

    async def _replace_dead(self, producer: Producer) -> None:
        """Remove the producer with the same name, unless it is alive and another client's."""
        while (other := self.by_name.get(producer.name)) is not None:
            if not _succeeds(producer, other) and await other.connection.probe():
                if other.closed:
                    continue  # it left meanwhile
                return
            other.connection.forget_producer(other)
            self.remove(other)

    def _clear(self, error: ClientError) -> None:
        """Close all producers, and refuse those that wait, with the error."""
        waiting, self.waiting = self.waiting, deque()
        for producer in waiting:
            self._refuse(producer, error)
        for producer in list(self.by_name.values()):
            producer.connection.close_producer(producer)

    def _refuse(self, producer: Producer, error: ClientError) -> None:
        """One that waited has waited in vain."""
        producer.closed = True
        producer.connection.holdings.drop_producer(producer)
        producer.decide(producer, error)

    async def _grant(self, producer: Producer) -> None:
        """Connect the holder, its epoch durable."""
        try:
            async with self._granting:
                self._check_holds(producer)
                epoch = self._topic.topic_epoch
                check_epoch(producer.topic_epoch, epoch)
                following = next_epoch(producer.topic_epoch, epoch)
                if following != epoch:
                    await self._topic.set_topic_epoch(following)
            self._check_holds(producer)
            self._claimed = None
            producer.topic_epoch = following
            await self._enter(producer)
        except BaseException:
            self._release(producer)
            raise

    async def _enter(self, producer: Producer) -> None:
        """Take the name, and wait until the topic is ready for it."""
        self.by_name[producer.name] = producer
        producer.policies_changed()
        try:
            await self._topic.producer_joined(producer)
            self._topic.check_writable()
            if producer.closed:
                raise _taken()
            check_encryption(self._topic.name, self._topic.policies, encrypted=producer.encrypted)
        except BaseException:
            self.remove(producer)
            raise

    def _check_holds(self, producer: Producer) -> None:
        if self._holder is not producer:
            raise _taken()

    def policies_changed(self) -> None:
        """Close producers that would not be admitted now; when they come back they hear why."""
        if self._topic.throttle is not None:
            self._topic.throttle.change(self._topic.policies.publish_rate)
        for producer in self.by_name.values():
            producer.policies_changed()
        if not self._topic.policies.encryption_required:
            return
        for producer in [p for p in self.by_name.values() if not p.encrypted]:
            producer.connection.close_producer(producer)
        for producer in [p for p in self.waiting if not p.encrypted]:
            self.remove(producer)
            producer.decide(producer, _unencrypted(self._topic.name))

    def remove(self, producer: Producer) -> None:
        """Forget a producer that left, wherever it was."""
        producer.closed = True
        producer.connection.holdings.drop_producer(producer)
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
            self._topic.producer_left(producer)
        elif producer in self.waiting:
            self.waiting.remove(producer)
        self._release(producer)

    def disconnect(self) -> None:
        """The topic goes away from here: all producers look it up again."""
        error = ClientError(ServerError.ServiceNotReady, "The topic is being unloaded")
        self._clear(error)
        if self._topic.throttle is not None:
            self._topic.throttle.change(NO_LIMIT)  # nobody waits for it

    def _release(self, producer: Producer) -> None:
        """Promote the next producer once all before it have left."""
        if self._holder is producer:
            self._holder = self._claimed = None
        if self._holder is None and not self.by_name and self.waiting and not self._topic.closed:
            following = self.waiting.popleft()
            self._hold(following)
            self._promotions.add(task := asyncio.create_task(self._promote(following)))
            task.add_done_callback(self._promotions.discard)

    async def _promote(self, producer: Producer) -> None:
        try:
            await self._grant(producer)
        except Exception as error:
            # Whatever it was, the client waits for an answer; ``_grant`` gave the turn to the next.
            if not isinstance(error, PulsarkError):
                log.exception("%s: failed to admit producer %s", self._topic.name, producer.name)
                error = internal_error()
            self.remove(producer)
            producer.decide(producer, error)
        else:
            producer.decide(producer, None)


def check_encryption(name: TopicName, policies: TopicPolicies, *, encrypted: bool) -> None:
    """Refuse a producer that does not encrypt where that is required."""
    if policies.encryption_required and not encrypted:
        raise _unencrypted(name)


def _unencrypted(topic: TopicName) -> ClientError:
    return ClientError(ServerError.MetadataError, f"Encryption is required in {topic}")


def _taken() -> ClientError:
    return ClientError(ServerError.ProducerFenced, "Another producer took the topic for itself")


def _succeeds(producer: Producer, other: Producer) -> bool:
    """Whether ``producer`` is the same client's next attempt."""
    return (
        producer.connection is other.connection
        and producer.producer_id == other.producer_id
        and producer.epoch > other.epoch
    )
