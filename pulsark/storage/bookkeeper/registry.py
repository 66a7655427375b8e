"""Which bookies a cluster has, as they register themselves in ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from pulsark.errors import MetadataError, StorageError
from pulsark.metadata.zookeeper.nodes import NoNodeError
from pulsark.storage.bookie.known_bookies import BookieState
from pulsark.storage.bookkeeper.bookie import BookKeeperBookie
from pulsark.storage.bookkeeper.encoder import LedgerKeys, RunEncoder
from pulsark.storage.bookkeeper.link import Address
from pulsark.storage.bookkeeper.paths import AVAILABLE, COOKIES, READ_ONLY
from pulsark.storage.proto.bookkeeper_pb2 import BookieServiceInfoFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.metadata.zookeeper.lasting import RawNodes
    from pulsark.storage.bookkeeper.limits import ClientSettings

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
_READ_ONLY_NAME: Final = READ_ONLY.rpartition("/")[2]


class BookieRegistry(Mapping[str, BookKeeperBookie]):
    """The bookies of a cluster. It has those that are registered now, writable or not.

    ``get`` also gives one that is not: ledgers name it, and it may be back. It is the same object
    as long as it is the same instance of the bookie.
    """

    def __init__(
        self,
        zookeeper: RawNodes,
        root: str,
        keys: LedgerKeys,
        settings: ClientSettings | None = None,
    ) -> None:
        """``root``: the cluster's, below that of the client."""
        self._zookeeper = zookeeper
        self._root = root
        self.ledger_keys = keys
        """What is known of ledgers' passwords and digests."""
        self._encoder = RunEncoder(keys)
        self._settings = settings
        self._bookies: dict[str, BookKeeperBookie] = {}
        self._writable: frozenset[str] = frozenset()
        self._read_only: frozenset[str] = frozenset()
        self._said_lost: frozenset[str] = frozenset()
        """Bookies that take no more entries, as the log has said."""
        self._changed = asyncio.Event()
        self._listed = asyncio.Event()
        self._lost: list[Callable[[str], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.racks: Mapping[str, str] = {}
        """By bookie, as far as they are known."""

    async def start(self) -> None:
        """Begin to follow. Raises what the first look does."""
        self._zookeeper.on_regained(self._changed.set)
        await self._look()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Disconnect from all bookies."""
        if self._task is not None:
            self._task.cancel()
        bookies = list(self._bookies.values())
        await asyncio.gather(*(bookie.close() for bookie in bookies), *self._closing)

    def on_lost(self, listener: Callable[[str], None]) -> None:
        """Call ``listener(bookie_id)`` when a bookie can be written no more, also if nobody did."""
        self._lost.append(listener)

    # Which there are.

    def __getitem__(self, bookie_id: str) -> BookKeeperBookie:
        bookie = self._bookies.get(bookie_id)
        return self._new(bookie_id) if bookie is None else bookie

    def __contains__(self, bookie_id: object) -> bool:
        return bookie_id in self._writable or bookie_id in self._read_only

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._writable | self._read_only))

    def __len__(self) -> int:
        return len(self._writable | self._read_only)

    def is_writable(self, bookie_id: str) -> bool:
        """Whether it takes new entries."""
        return bookie_id in self._writable

    def set_racks(self, racks: Mapping[str, str]) -> None:
        """Where bookies stand; ledgers that are made from now on follow it."""
        self.racks = racks

    def rack(self, bookie_id: str) -> str:
        """Where it stands; all of whom that is not known stand together."""
        return self.racks.get(bookie_id, "/default-rack")

    async def states(self) -> Mapping[str, BookieState]:
        """Of all that were ever formatted and not removed; as ``KnownBookies`` has it."""
        try:
            names = await self._zookeeper.children(f"{self._root}/{COOKIES}")
        except NoNodeError:
            names = []
        return {name: self._state(name) for name in sorted({*names, *self})}

    def _state(self, bookie_id: str) -> BookieState:
        if bookie_id in self._writable:
            return BookieState.AVAILABLE
        return BookieState.READ_ONLY if bookie_id in self._read_only else BookieState.AWAY

    # Following.

    async def _follow(self) -> None:
        failed = False
        while True:
            await self._changed.wait()
            try:
                await self._look()
                if failed:
                    failed = False
                    log.warning("which bookies there are can be read again")
            except Exception as e:
                log.warning(
                    "which bookies there are cannot be read, will try again: %s",
                    e,
                    exc_info=None if isinstance(e, MetadataError) else e,
                )
                failed = True
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _look(self) -> None:
        # Before: what changes during the look is looked at again.
        self._changed.clear()
        read_only = await self._names(READ_ONLY)
        writable = await self._names(AVAILABLE) - {_READ_ONLY_NAME} - read_only
        lost = self._writable - writable
        for bookie_id in sorted(self._said_lost & writable):
            log.warning("bookie %s takes entries again", bookie_id)
        self._said_lost = (self._said_lost | lost) - writable
        self._writable, self._read_only = writable, read_only
        self._listed.set()
        self._listed.clear()
        for bookie_id in sorted(writable | read_only):
            if bookie_id not in self._bookies:
                self._new(bookie_id)
        for bookie_id in sorted(lost):
            state = self._state(bookie_id)
            log.warning("bookie %s takes no more entries: it is %s", bookie_id, state)
            for listener in self._lost:
                listener(bookie_id)

    async def _names(self, directory: str) -> frozenset[str]:
        path = f"{self._root}/{directory}"
        return frozenset(await self._zookeeper.children(path, self._changed.set))

    def _new(self, bookie_id: str) -> BookKeeperBookie:
        instance = _Instance(bookie_id, self)
        bookie = BookKeeperBookie(instance, self.ledger_keys, self._encoder, self._settings)
        self._bookies[bookie_id] = bookie
        bookie.open()
        return bookie

    def replaced(self, instance: _Instance) -> None:
        """There is another bookie of that name: who has the former one can do nothing with it."""
        former = self._bookies.get(instance.bookie_id)
        if former is None or not former.is_of(instance):
            return
        self._new(instance.bookie_id)
        for listener in self._lost:
            listener(instance.bookie_id)
        task = asyncio.get_running_loop().create_task(former.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def address(self, bookie_id: str) -> Address:
        """Where a bookie listens; waits until it is registered."""
        while True:
            # Before the reads: a registration after them wakes the wait.
            listed = asyncio.ensure_future(self._listed.wait())
            try:
                for directory in (AVAILABLE, READ_ONLY):
                    node = await self._zookeeper.get(f"{self._root}/{directory}/{bookie_id}")
                    if node is not None:
                        return _address(bookie_id, node.data)
                await listed
            except MetadataError as e:
                log.warning("where bookie %s is cannot be read, will try again: %s", bookie_id, e)
                await asyncio.sleep(RETRY_SECONDS)
            finally:
                listed.cancel()

    async def instance(self, bookie_id: str) -> int:
        """The transaction in which the bookie of that name was formatted."""
        path = f"{self._root}/{COOKIES}/{bookie_id}"
        await self._zookeeper.sync()
        node = await self._zookeeper.get(path)
        if node is None:
            raise StorageError(f"bookie {bookie_id} has no cookie")
        return node.created


class _Instance:
    """The ``Whereabouts`` of the bookie that had its name at the first connection."""

    def __init__(self, bookie_id: str, registry: BookieRegistry) -> None:
        self._bookie_id = bookie_id
        self._registry = registry
        self._created: int | None = None

    @property
    def bookie_id(self) -> str:
        return self._bookie_id

    async def address(self) -> Address:
        return await self._registry.address(self._bookie_id)

    async def check_instance(self) -> None:
        created = await self._registry.instance(self._bookie_id)
        if self._created is None:
            self._created = created
        elif created != self._created:
            self._registry.replaced(self)
            raise StorageError(f"bookie {self._bookie_id} was formatted anew: it is another one")


def _address(bookie_id: str, registered: bytes) -> Address:
    """What a bookie says of itself; old ones are named by their address."""
    if registered:
        try:
            info = BookieServiceInfoFormat.FromString(registered)
        except DecodeError as e:
            raise MetadataError(f"the registration of bookie {bookie_id}: {e}") from e
        for endpoint in info.endpoints:
            if endpoint.id == "bookie" or endpoint.protocol == "bookie-rpc":
                return Address(endpoint.host, endpoint.port)
    host, colon, port = bookie_id.rpartition(":")
    if not colon or not port.isdecimal():
        raise MetadataError(f"bookie {bookie_id} does not say where it is")
    return Address(host, int(port))
