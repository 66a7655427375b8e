"""``TableCalls`` over the admin API of the brokers that have the tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pulsark.dispatch.peers.http_call import PeerError, PeerGoneError
from pulsark.dispatch.peers.peers import NotBelievedError, NotOwnerError, reason_in
from pulsark.errors import CrowdedTableError, NotAttachedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.tables.far_tables import FarAttach
    from pulsark.wire.topic_name import TopicName

CROWDED = 507
"""The status that says that there is no room for what would be known of a table."""


class PeerTableCalls:
    """Those of one broker."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def attach(self, broker_id: str, asked: FarAttach) -> None:
        """See ``TableCalls``."""
        body = {
            "tableId": asked.table_id,
            "files": [file.to_json() for file in asked.files],
            "value": asked.value,
            "claims": {str(partition): version for partition, version in asked.claims.items()},
        }
        await self._ask(broker_id, asked.base, "attach", body)

    async def existing(
        self, broker_id: str, name: TopicName, table_id: str, ledger_ids: Collection[int]
    ) -> set[int]:
        """See ``TableCalls``."""
        body = {"tableId": table_id, "ledgers": sorted(ledger_ids)}
        found = await self._ask(broker_id, name, "table/reserved", body)
        return set(found["existing"])

    async def _ask(self, broker_id: str, name: TopicName, what: str, body: Any) -> Any:
        topic = f"{name.domain}/{name.namespace_name}/{quote(name.local, safe='')}"
        others = await self._peers.knows.others()
        peer = next((peer for peer in others if peer.broker_id == broker_id), None)
        if peer is None:
            raise NotAttachedError(f"the broker {broker_id}, which has the table, is gone")
        content = json.dumps(body).encode()
        try:
            status, answer = await self._peers.part(
                peer, "POST", f"/admin/v2/{topic}/{what}", content
            )
        except (PeerGoneError, NotOwnerError, NotBelievedError) as error:  # it did nothing
            raise NotAttachedError(f"the broker {broker_id}: {error}") from error
        except PeerError as error:
            raise StorageError(f"the broker {broker_id}: {error}") from error
        if status < 300:
            return json.loads(answer) if answer else None
        reason = f"the broker {broker_id}: {reason_in(answer)}"
        if status == CROWDED:
            raise CrowdedTableError(reason)
        if status < 500:
            raise NotAttachedError(reason)
        raise StorageError(reason)
