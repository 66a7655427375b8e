"""Records of other brokers' audits, which this broker publishes because it has the topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.errors import ClientError, ServerError
from pulsark.security.audit.limits import AUDIT_BROKERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pulsark.dispatch.audit.publisher import AuditPublisher
    from pulsark.security.audit.chain import AuditRecord, Head


class AuditForOthers:
    """One publisher for each broker that asks, as each has a chain of its own."""

    def __init__(self, publisher_of: Callable[[str], AuditPublisher], seconds: float) -> None:
        """A call takes so long at most."""
        self._publisher_of = publisher_of
        self._seconds = seconds
        self._publishers: dict[str, AuditPublisher] = {}

    async def open(self, broker: str) -> Head:
        """Be able to publish for a broker; says which record is its last."""
        former = self._publishers.pop(broker, None)
        if former is not None:
            former.close()  # what it had under way is in the topic, or not
        while len(self._publishers) >= AUDIT_BROKERS_MAX:
            self._publishers.pop(next(iter(self._publishers))).close()
        publisher = self._publishers[broker] = self._publisher_of(broker)
        async with asyncio.timeout(self._seconds):
            return await publisher.open()

    async def publish(
        self, broker: str, records: Sequence[AuditRecord], times_ms: Sequence[int]
    ) -> Head:
        """Return once they are durable; says which was the last."""
        publisher = self._publishers.get(broker)
        if publisher is None or not publisher.is_open:
            raise ClientError(ServerError.ServiceNotReady, "Ask first which record is the last")
        async with asyncio.timeout(self._seconds):
            await publisher.publish(records, times_ms)
        return records[-1].head
