"""What brokers ask each other about tables and their partitions, over the admin API."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pulsark.dispatch.peers.http_call import PeerError, PeerGoneError
from pulsark.dispatch.peers.peers import NotBelievedError, NotOwnerError, reason_in
from pulsark.errors import (
    ClientError,
    CrowdedTableError,
    NotAttachedError,
    ServerError,
    StorageError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pulsark.dispatch.peers.peers import Peers
    from pulsark.dispatch.peers.whereabouts import Peer
    from pulsark.dispatch.tables.far_tables import FarAttach
    from pulsark.runtime import Runtime
    from pulsark.storage.managed_ledger.reservations import Wanted
    from pulsark.wire.topic_name import TopicName

ASK_SECONDS = 0.02
ASK_SECONDS_MAX = 0.5
"""The first and the longest pause before another broker is asked how far it is with a work."""

FAILURES_MAX = 20
"""So often in a row it may give no answer."""

CROWDED = 507
"""The status that says that there is no room for what would be known of a table."""


class PeerTableCalls:
    """The table calls of one broker."""

    def __init__(self, peers: Peers, runtime: Runtime) -> None:
        self._peers = peers
        self._rng = runtime.rng

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

    async def check_writable(
        self, broker_id: str, base: TopicName, partitions: Sequence[int]
    ) -> None:
        """See ``PartitionCalls``."""
        found = await self._reserved(broker_id, base, do="check", partitions=list(partitions))
        if found is not None:
            raise ClientError(ServerError(found["code"]), found["reason"])

    async def reserve(
        self,
        broker_id: str,
        base: TopicName,
        asker: str,
        token: str,
        wanted: Wanted,
        rows: Mapping[int, int],
    ) -> dict[int, list[int]]:
        """See ``PartitionCalls``."""
        asked = [[number, list(map(list, new)), rows[number]] for number, new in wanted.items()]
        found = await self._reserved(
            broker_id, base, do="reserve", asker=asker, token=token, partitions=asked
        )
        return dict(found["reserved"])

    async def hold_appends(self, broker_id: str, base: TopicName, token: str) -> None:
        """See ``PartitionCalls``."""
        await self._reserved(broker_id, base, do="hold", token=token)

    async def decide(self, broker_id: str, base: TopicName, token: str, exist: bool | None) -> None:
        """See ``PartitionCalls``."""
        await self._reserved(broker_id, base, do="decide", token=token, exist=exist)

    async def work(self, broker_id: str, base: TopicName, what: Mapping[str, Any]) -> Any:
        """See ``TableCalls``."""
        ident = f"{self._rng.getrandbits(128):032x}"
        peer = await self._peer(broker_id)
        return await worked(self._peers, peer, base, ident, what)

    async def _reserved(self, broker_id: str, base: TopicName, **body: Any) -> Any:
        return await self._ask(broker_id, base, "bulkPublish/reserved", body)

    async def _ask(self, broker_id: str, name: TopicName, what: str, body: Any) -> Any:
        peer = await self._peer(broker_id)
        content = json.dumps(body).encode()
        try:
            status, answer = await self._peers.part(peer, "POST", f"{_path(name)}/{what}", content)
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

    async def _peer(self, broker_id: str) -> Peer:
        others = await self._peers.knows.others()
        peer = next((peer for peer in others if peer.broker_id == broker_id), None)
        if peer is None:
            raise NotAttachedError(f"the broker {broker_id} is gone")
        return peer


async def worked(
    peers: Peers, peer: Peer, base: TopicName, ident: str, what: Mapping[str, Any]
) -> Any:
    """Have another broker do a work in its partitions, and wait for what comes of it.

    A call that is lost is made again, and is about the same work. ``StorageError``: it was not
    done, or not all of it, or nobody knows.
    """
    target = f"{_path(base)}/table/part/{quote(ident)}"
    body = json.dumps(what).encode()
    failures, pause = 0, ASK_SECONDS
    while True:
        try:
            status, answer = await peers.part(peer, "POST", target, body)
        except PeerError as error:
            status, answer = 503, str(error).encode()
        if status < 300:
            failures = 0
            found = json.loads(answer)
            if found["status"] == "SUCCESS":
                return found["result"]
            if found["status"] == "ERROR":
                raise StorageError(f"the broker {peer.broker_id}: {found['error']}")
        else:
            failures += 1
            pause = ASK_SECONDS_MAX
            if failures == FAILURES_MAX:
                raise StorageError(f"the broker {peer.broker_id}: {reason_in(answer)}; do it again")
        await asyncio.sleep(pause)
        pause = min(2 * pause, ASK_SECONDS_MAX)


def _path(name: TopicName) -> str:
    return f"/admin/v2/{name.domain}/{name.namespace_name}/{quote(name.local, safe='')}"
