"""Where a broker publishes its audit: to the topic, or by way of the broker that has the topic.

Each broker has a chain of records of its own, so what one of several brokers notes is the same
whoever writes it down. The owner answers when records are durable, as a topic does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pulsark.errors import ClientError, ServerError
from pulsark.security.audit.chain import Head
from pulsark.security.audit.definition import TOPIC
from pulsark.security.audit.limits import AUDIT_CALL_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pulsark.dispatch.audit.publisher import AuditPublisher
    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.peers.whereabouts import Peer
    from pulsark.security.audit.chain import AuditRecord

    Line = list[Any]

TARGET = f"/admin/v2/{TOPIC.domain}/{TOPIC.namespace_name}/{quote(TOPIC.local)}/auditRecords"


class AuditAnywhere:
    """The publisher of one broker's audit."""

    def __init__(self, here: AuditPublisher, peers: Callable[[], Peers | None]) -> None:
        """``peers`` says how to call other brokers; ``None`` if there are none."""
        self._here = here
        self._peers = peers
        self._there: Peer | None = None

    @property
    def is_open(self) -> bool:
        """Whether records can be published."""
        return self._there is not None or self._here.is_open

    async def open(self) -> Head:
        """Be able to publish; says which record is the last of this broker."""
        peers = self._peers()
        peer = None if peers is None else await peers.knows.find(TOPIC)
        if peer is None:
            return await self._here.open()
        found = await self._ask(peer, [])
        self._there = peer
        return Head(found["seq"], found["digest"])

    async def publish(self, records: Sequence[AuditRecord], times_ms: Sequence[int]) -> None:
        """Return once they are durable. After an error, whether they are is not known."""
        peer = self._there
        if peer is None:
            await self._here.publish(records, times_ms)
            return
        for lines in _calls(records, times_ms):
            await self._ask(peer, lines)

    def close(self) -> None:
        """Publish no more, until it is opened again."""
        self._there = None
        self._here.close()

    async def _ask(self, peer: Peer, lines: list[Line]) -> Any:
        from pulsark.dispatch.peers.peers import reason_in  # where there are several brokers

        peers = self._peers()
        if peers is None:
            raise ClientError(ServerError.ServiceNotReady, "The broker with the audit is gone")
        body = json.dumps({"broker": self._here.broker, "records": lines}).encode()
        status, answer = await peers.part(peer, "POST", TARGET, body)
        if status >= 300:
            raise ClientError(
                ServerError.ServiceNotReady,
                f"Broker {peer.broker_id} takes no records of the audit: {reason_in(answer)}",
            )
        return json.loads(answer)


def _calls(records: Sequence[AuditRecord], times_ms: Sequence[int]) -> Iterator[list[Line]]:
    """Lines of calls that are small enough."""
    lines: list[Line] = []
    size = 0
    for record, time_ms in zip(records, times_ms, strict=True):
        if lines and size + len(record.payload) > AUDIT_CALL_BYTES_MAX:
            yield lines
            lines, size = [], 0
        lines.append([*record.head, record.payload.decode(), time_ms])
        size += len(record.payload)
    yield lines
