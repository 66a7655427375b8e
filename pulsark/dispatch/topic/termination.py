"""The end of a topic that takes no more messages, and who hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulsark.dispatch.model.producer import Producer
    from pulsark.dispatch.subscription.subscription import Subscription
    from pulsark.storage.managed_ledger.managed_ledger import ManagedLedger
    from pulsark.wire.position import Position


class Termination:
    """Terminates one topic. Subscriptions tell consumers that have acknowledged all of it."""

    def __init__(
        self,
        ledger: ManagedLedger,
        producers: Mapping[str, Producer],
        subscriptions: Mapping[str, Subscription],
    ) -> None:
        self._ledger = ledger
        self._producers = producers
        self._subscriptions = subscriptions

    async def terminate(self) -> Position:
        """No more messages: returns the position of the last one."""
        last = await self._ledger.terminate()
        for producer in list(self._producers.values()):
            producer.connection.close_producer(producer)
        for subscription in self._subscriptions.values():
            subscription.members.announce_end()
        return last
