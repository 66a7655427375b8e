"""``BookKeeperLedgerStore``: ledgers' metadata where BookKeeper's own tools find them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pulsark.errors import BadVersionError, CorruptMetadataError, MetadataRefusedError
from pulsark.metadata.guarded import check_guard, is_guarded
from pulsark.metadata.store import ABSENT
from pulsark.metadata.zookeeper.nodes import (
    CreateNode,
    DeleteNode,
    NodeExistsError,
    NodeVersionError,
    NoNodeError,
    NotEmptyError,
    SetNode,
)
from pulsark.storage.bookkeeper.guarded_writes import ATTEMPTS, GuardedWrites
from pulsark.storage.bookkeeper.nodes import LedgerNode, as_stored, decode_node, new_node
from pulsark.storage.bookkeeper.paths import ledger_node, parents
from pulsark.storage.ledger.store import (
    ComparedLedgerStore,
    MetadataLedgerStore,
    StoredLedger,
)

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore
    from pulsark.metadata.zookeeper.guard_nodes import GuardNodes
    from pulsark.metadata.zookeeper.lasting import RawNodes
    from pulsark.storage.bookkeeper.encoder import LedgerKeys
    from pulsark.storage.bookkeeper.ids import LedgerIds
    from pulsark.storage.ledger.metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class BookKeeperCluster:
    """What all stores of a cluster's ledgers share."""

    zookeeper: RawNodes
    root: str
    """The cluster's, below that of the client."""
    ids: LedgerIds
    keys: LedgerKeys
    guards: GuardNodes | None = None
    """Guards that can be checked in the same commit: the metadata store is in this ZooKeeper."""


class BookKeeperLedgerStore(ComparedLedgerStore):
    """Ledgers with bookies are nodes of the cluster, which the bookies must find there: they erase
    what has none. Attached ledgers have no bookies and stay in the metadata store.
    """

    def __init__(self, cluster: BookKeeperCluster, metadata: MetadataStore) -> None:
        """``metadata``: for attached ledgers, and for its guard (see ``over``)."""
        self._cluster = cluster
        self._zookeeper = cluster.zookeeper
        self._metadata = metadata
        self._attached = MetadataLedgerStore(metadata)
        self._writes = GuardedWrites(cluster.zookeeper, metadata, cluster.guards)

    async def new_id(self) -> int:
        return await self._cluster.ids.new()

    async def get(self, ledger_id: int) -> StoredLedger | None:
        path = self._path(ledger_id)
        found = await self._zookeeper.get(path)
        if found is None:
            attached = await self._attached.get(ledger_id)
            if attached is not None:
                return attached
            # Another broker may have made it, and the server that answers here lag behind: a
            # deletion would leave it there for ever, and a recovery take it for lost.
            await self._zookeeper.sync()
            found = await self._zookeeper.get(path)
            if found is None:
                return None
        try:
            node = decode_node(found.data)
            metadata = node.metadata(ledger_id)
        except CorruptMetadataError as e:
            raise CorruptMetadataError(f"ledger {ledger_id}: {e}") from e
        self._cluster.keys.note(ledger_id, node.key)
        return StoredLedger(metadata, found.version, node)

    def made(self, metadata: LedgerMetadata) -> StoredLedger:
        if metadata.is_attached:
            return self._attached.made(metadata)
        node = new_node(metadata, self._cluster.keys.usual, secrets.randbits(63))
        return StoredLedger(as_stored(metadata), ABSENT, node)

    def is_own(self, made: StoredLedger, found: StoredLedger) -> bool:
        if not isinstance(made.kept, LedgerNode) or not isinstance(found.kept, LedgerNode):
            return self._attached.is_own(made, found)
        return made.kept.token == found.kept.token

    async def put(self, metadata: LedgerMetadata, over: StoredLedger) -> StoredLedger:
        if metadata.is_attached:
            return await self._attached.put(metadata, over)
        ledger_id = metadata.ledger_id
        path = self._path(ledger_id)
        node = cast("LedgerNode", over.kept)
        if over.version == ABSENT:
            await self._create(path, node.encode())
            return StoredLedger(over.metadata, 0, node)
        node = node.changed(metadata)
        try:
            version = await self._writes.do(SetNode(path, node.encode(), over.version))
        except (NodeVersionError, NoNodeError) as e:
            raise BadVersionError(path, f"is not at version {over.version}") from e
        assert isinstance(version, int)
        return StoredLedger(as_stored(metadata), version, node)

    async def _create(self, path: str, data: bytes) -> None:
        for _ in range(ATTEMPTS):
            try:
                await self._writes.do(CreateNode(path, data))
            except NodeExistsError as e:
                raise BadVersionError(path, "exists") from e
            except NoNodeError:
                # The first of its directory; or who deleted the last one has removed that again.
                await self._zookeeper.make(path.rpartition("/")[0])
            else:
                return
        raise MetadataRefusedError(f"{path} cannot be created: its directory vanishes again")

    async def delete(self, ledger_id: int) -> None:
        path = self._path(ledger_id)
        try:
            await self._writes.do(DeleteNode(path))
        except NoNodeError:
            await self._attached.delete(ledger_id)
            return
        # Each bookie lists all directories now and then: an empty one is not left.
        for parent in reversed(parents(ledger_node(ledger_id))):
            directory = f"{self._cluster.root}/{parent}"
            found = await self._zookeeper.get(directory)
            if found is None or found.children:
                return
            try:
                await self._zookeeper.delete(directory)
            except (NotEmptyError, NoNodeError):
                return

    async def check_owner(self) -> None:
        await check_guard(self._metadata)

    @property
    def has_owner(self) -> bool:
        return is_guarded(self._metadata)

    def over(self, metadata: MetadataStore) -> BookKeeperLedgerStore:
        return BookKeeperLedgerStore(self._cluster, metadata)

    def _path(self, ledger_id: int) -> str:
        return f"{self._cluster.root}/{ledger_node(ledger_id)}"
