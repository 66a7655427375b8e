"""Exclusive: one consumer, and nobody else may subscribe."""

from __future__ import annotations

from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.entry import Entry
from pulsark.dispatch.subscription_type import SubType
from pulsark.errors import ClientError, ServerError


class Exclusive:
    """The subscription's only consumer receives everything."""

    sub_type = SubType.Exclusive
    tracks_pending = False

    def __init__(self) -> None:
        self._consumer: Consumer | None = None

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self._consumer is None else [self._consumer]

    @property
    def active(self) -> Consumer | None:
        return self._consumer

    def add(self, consumer: Consumer) -> None:
        if self._consumer is not None:
            raise ClientError(ServerError.ConsumerBusy, "Exclusive consumer is already connected")
        self._consumer = consumer

    def remove(self, consumer: Consumer) -> None:
        if self._consumer is consumer:
            self._consumer = None

    def has_room(self) -> bool:
        return self._consumer is not None and self._consumer.can_receive()

    def choose(self, entry: Entry) -> Consumer | None:
        consumer = self._consumer
        return consumer if consumer is not None and consumer.can_receive() else None
