"""Exclusive: one consumer; any other one is refused.

It may name ranges of hashes, as the consumers of a sticky Key_Shared subscription do; then it gets
the keys in them only. So do readers that divide a topic among themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.dispatch.model.subscription_type import PlaceTakenError, SubType
from pulsark.dispatch.subscription.hash_ranges import StickyRanges
from pulsark.dispatch.subscription.single_active import SingleActive
from pulsark.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.model.consumer import Consumer
    from pulsark.dispatch.model.entry import Entry


class Exclusive(SingleActive):
    """The subscription's only consumer receives everything."""

    sub_type = SubType.Exclusive

    @property
    def consumers(self) -> list[Consumer]:
        return [] if self._active is None else [self._active]

    @property
    def consumer_count(self) -> int:
        return 0 if self._active is None else 1

    def add(self, consumer: Consumer) -> None:
        if self._active is not None:
            raise PlaceTakenError(
                ServerError.ConsumerBusy, "Exclusive consumer is already connected", self._active
            )
        self.unwanted = _outside(consumer) if consumer.key_ranges else None
        self._active = consumer

    def remove(self, consumer: Consumer) -> None:
        if self._active is consumer:
            self._active = None


def _outside(consumer: Consumer) -> Callable[[Entry], bool]:
    ranges = StickyRanges()
    ranges.add(consumer)
    return lambda entry: ranges.owner(ranges.slot(entry.key_hash)) is None
