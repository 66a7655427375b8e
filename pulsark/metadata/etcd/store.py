"""The metadata store in etcd, for brokers of several machines. See ``EtcdMetadataStore``.

Reads ask the server, and see all that was written before. ``writer`` has the writes; ``watch``
tells what other processes did, and ``marks`` let bookies notice an etcd that went back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from pulsark.errors import MetadataError, MetadataRefusedError
from pulsark.limits import METADATA_PAGE_MAX
from pulsark.metadata.changes import Change, Check, check_changes
from pulsark.metadata.counters import Counters
from pulsark.metadata.etcd import messages
from pulsark.metadata.etcd.access import EtcdAccess
from pulsark.metadata.etcd.gateway import Gateway
from pulsark.metadata.etcd.instance import begin_session, find_or_create
from pulsark.metadata.etcd.layout import Layout, behind, child_of, is_quiet
from pulsark.metadata.etcd.lease import Lease
from pulsark.metadata.etcd.marks import Marks
from pulsark.metadata.etcd.transactions import Transactions
from pulsark.metadata.etcd.watch import Watch
from pulsark.metadata.etcd.writer import Writer
from pulsark.metadata.history import NONCE_BITS
from pulsark.metadata.server_store import ServerStore
from pulsark.metadata.session import SIGNS_A_DEADLINE
from pulsark.metadata.store import Versioned, check_page, check_parent, split_path
from pulsark.metadata.watches import Watches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pulsark.metadata.etcd.address import EtcdAddress
    from pulsark.metadata.session import Session
    from pulsark.runtime import Runtime

SESSION_SECONDS: Final = 30.0
OPERATION_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 3.0
_KEYS_AT_FIRST: Final = 64


class EtcdMetadataStore(ServerStore):
    """One session. See ``open``."""

    _marks: Marks

    def __init__(
        self,
        address: EtcdAddress,
        gateway: Gateway,
        runtime: Runtime,
        layout: Layout,
        identity: str,
        lease: Lease,
        timeout_seconds: float,
    ) -> None:
        self.address = address
        self.identity = identity
        self._gateway = gateway
        self._runtime = runtime
        self._layout = layout
        self._lease = lease
        self._timeout_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._watches = Watches()
        self._marks = Marks()
        self._counters = Counters(self)
        session_key = layout.session(lease.number)
        self._transactions = Transactions(gateway, layout, self._marks, session_key, lease.end)
        self._writer = Writer(self._transactions, layout, lease.number)
        self._watch = Watch(
            gateway, self._transactions, layout, self._marks, self._told,
            self._watches.tell_missed,
        )  # fmt: skip
        lease.session.on_end(self._watch.close)
        gateway.on_foreign(lambda: lease.end("another cluster of etcd answers at its address"))
        self._closed = False

    @classmethod
    async def open(
        cls,
        address: EtcdAddress,
        runtime: Runtime,
        *,
        create: bool = True,
        access: EtcdAccess | None = None,
        session_seconds: float = SESSION_SECONDS,
        timeout_seconds: float = OPERATION_SECONDS,
    ) -> EtcdMetadataStore:
        """Begin a session. ``MetadataError`` if etcd cannot be reached, or has no store.

        With ``create`` a store that is missing is created, as for a new cluster. Everybody else
        refuses an empty etcd.
        """
        answer_seconds = min(timeout_seconds, session_seconds / SIGNS_A_DEADLINE)
        gateway = Gateway(address, access or EtcdAccess(), answer_seconds)
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        layout = Layout(address.root)
        store = lease = None
        try:
            new = f"{runtime.rng.getrandbits(128):032x}"
            identity = await find_or_create(gateway, address, layout, new, deadline, create=create)
            lease = await Lease.grant(gateway, runtime.clock, session_seconds, deadline)
            history = await begin_session(gateway, layout, lease.number, deadline)
            store = cls(address, gateway, runtime, layout, identity, lease, timeout_seconds)
            await store._start(history)
        except BaseException as error:
            if store is not None:
                await store.close()
            gateway.close()
            if isinstance(error, ValueError | KeyError | TypeError):
                raise MetadataError(f"what answers at {address} is not etcd: {error}") from error
            raise
        return store

    async def _start(self, history: messages.KeyValue) -> None:
        self._marks.learn(history.value, history.changed)
        self._lease.keep()
        await self.adopt(())
        self._watch.start(self._marks.changed)

    @property
    def session(self) -> Session:
        return self._lease.session

    async def adopt(self, marks: Iterable[int]) -> None:
        nonce, above = self._runtime.rng.getrandbits(NONCE_BITS), tuple(marks)
        deadline = self._deadline()
        while True:
            value = self._marks.begun(nonce, above)
            made = [messages.put(self._layout.history, value)]
            answer = await self._transactions.write([], made, [], deadline)
            if answer.succeeded:
                self._marks.learn(value, answer.revision)
                return

    async def get(self, path: str) -> Versioned | None:
        split_path(path)
        return await self._writer.read(path, self._deadline())

    async def commit(self, changes: Sequence[Change]) -> Sequence[int]:
        check_changes(changes)
        written = await self._writer.write(changes, self._deadline())
        self._marks.tell()
        # What all are told of may have come back by the watch already.
        is_new = not written.is_watched or self._watch.made(written.revision)
        for change in changes:
            if not isinstance(change, Check) and (is_new or is_quiet(change.path)):
                self._watches.tell(change.path)
        return written.versions

    async def children(self, path: str) -> list[str]:
        check_parent(path)
        names: set[str] = set()
        for parent in self._layout.parents(path):
            after = ""
            while found := await self._names(parent, after, METADATA_PAGE_MAX):
                names.update(found)
                after = found[-1]
        return sorted(names)

    async def page(self, path: str, after: str = "", limit: int = METADATA_PAGE_MAX) -> list[str]:
        check_page(path, limit)
        names: set[str] = set()
        for parent in self._layout.parents(path):
            names.update(await self._names(parent, after, limit))
        return sorted(names)[:limit]  # as etcd sorts their bytes

    async def _names(self, parent: bytes, after: str, limit: int) -> list[str]:
        """Names of at most so many children behind one, in order."""
        names: list[str] = []
        key, end = behind(parent, after) if after else parent, messages.after(parent)
        at_once = min(limit, _KEYS_AT_FIRST)
        while len(names) < limit:
            read = messages.get(key, end, limit=at_once, keys_only=True)
            found = (await self._transactions.read([read], self._deadline())).found[0]
            new = dict.fromkeys(child_of(parent, each.key) for each in found)
            names += new
            if len(found) < at_once:
                break
            key = behind(parent, names[-1])
            # A child that has many descendants is passed over: few keys are read of each.
            many = len(new) > at_once // 2
            at_once = min(METADATA_PAGE_MAX, 4 * at_once) if many else _KEYS_AT_FIRST
        return names[:limit]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lease.stop()
        self._watch.close()
        if not self.session.has_ended:
            await self._lease.revoke(CLOSE_SECONDS)
        self._gateway.close()
        self.session.end()

    def _deadline(self) -> float:
        if self.session.has_ended:
            raise MetadataRefusedError("the session with etcd is over")
        return self._loop.time() + self._timeout_seconds

    def _told(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._watches.tell(path)
