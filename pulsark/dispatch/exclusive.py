"""Exclusive: one consumer, and nobody else may subscribe."""

from __future__ import annotations

from pulsark.dispatch.consumer import Consumer
from pulsark.dispatch.single_active import SingleActive
from pulsark.dispatch.subscription_type import PlaceTakenError, SubType
from pulsark.errors import ServerError


class Exclusive(SingleActive):
    """The subscription's only consumer receives everything."""

    sub_type = SubType.Exclusive

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self._active is None else [self._active]

    def add(self, consumer: Consumer) -> None:
        if self._active is not None:
            raise PlaceTakenError(
                ServerError.ConsumerBusy, "Exclusive consumer is already connected", self._active
            )
        self._active = consumer

    def remove(self, consumer: Consumer) -> None:
        if self._active is consumer:
            self._active = None
