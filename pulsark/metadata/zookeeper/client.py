"""One session with ZooKeeper for asyncio: raw nodes, each call with a deadline.

A client has one session. When this is over, every call is refused, and another client is needed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Transaction,
)
from kazoo.security import OPEN_ACL_UNSAFE

from pulsark.errors import MetadataError
from pulsark.metadata.session import Session
from pulsark.metadata.zookeeper.calls import FOLLOWING, Calls, error_of
from pulsark.metadata.zookeeper.connection import Connection
from pulsark.metadata.zookeeper.layout import NOWHERE
from pulsark.metadata.zookeeper.nodes import (
    ANY,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeExistsError,
    NoNodeError,
    Operation,
    Result,
    SetNode,
)
from pulsark.metadata.zookeeper.signs import Signs
from pulsark.tasks import unattended

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.metadata.zookeeper.address import ZooKeeperAddress
    from pulsark.runtime import Clock

log = logging.getLogger(__name__)

SESSION_SECONDS: Final = 30.0
OPERATION_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 3.0
SAID_SECONDS: Final = 3.0
"""The time after which the log says that the first connection takes long."""
_REFUSALS_MAX: Final = 4
"""For each server, before it is asked why."""
_LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Watch:
    """Equal for one listener: kazoo keeps it once, however often that looks at the same node."""

    event: Callable[[Callable[[], None], Any], None]
    changed: Callable[[], None]

    def __call__(self, event: Any) -> None:
        self.event(self.changed, event)


class ZooKeeperClient:
    """See ``connect``. Paths are below the address's root, and start with a slash."""

    def __init__(
        self,
        address: ZooKeeperAddress,
        clock: Clock,
        session_seconds: float,
        operation_seconds: float,
        auth: Iterable[tuple[str, str]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self.session = Session(clock, session_seconds)
        self.session_id = 0
        self._root = address.root
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._connection = Connection(
            address.hosts, session_seconds, self, self._loop, auth=auth, tls=tls,
            login=address.config.login,
        )  # fmt: skip
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._calls = Calls(self._connection, self._loop, operation_seconds)
        self._closed = False
        self._regained: list[Callable[[], None]] = []
        self._refusals = 0
        self._asking: asyncio.Task[None] | None = None
        self._signs: Signs | None = None

    @classmethod
    async def connect(
        cls,
        address: ZooKeeperAddress,
        clock: Clock,
        *,
        session_seconds: float = SESSION_SECONDS,
        operation_seconds: float = OPERATION_SECONDS,
        auth: Iterable[tuple[str, str]] = (),
        tls: ssl.SSLContext | None = None,
    ) -> ZooKeeperClient:
        """Begin a session and create the root. ``MetadataError`` if no server answers in time.

        The server may choose another timeout of the session within its own limits;
        ``session.timeout_seconds`` has it. ``auth`` are schemes and credentials, such as
        ``("digest", "user:password")``. ``tls`` is what another session has read of the files that
        the address names.
        """
        if tls is None and address.config.tls is not None:
            tls = await asyncio.to_thread(address.config.tls.context)
        client = cls(address, clock, session_seconds, operation_seconds, auth, tls)
        slow = "ZooKeeper at %s does not answer yet; it is tried for %.0f s"
        said = asyncio.get_running_loop().call_later(
            SAID_SECONDS, log.warning, slow, address.hosts, operation_seconds
        )
        try:
            client._connection.start()
            async with asyncio.timeout(operation_seconds):
                await client._first
                await client._make_root()
        except TimeoutError:
            await client.close()
            raise MetadataError(f"ZooKeeper cannot be reached at {address.hosts}") from None
        except BaseException:
            await client.close()
            raise
        finally:
            said.cancel()
        return client

    @property
    def zxid(self) -> int:
        """The last transaction of which answers have told that have arrived here."""
        return self._calls.zxid

    @property
    def is_connected(self) -> bool:
        """Whether calls are sent, rather than kept until there is a connection."""
        return self._calls.is_connected

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """The session's id and password, while connected."""
        return self._connection.client_id

    def on_regained(self, listener: Callable[[], None]) -> None:
        """Call ``listener()`` when a connection was lost and is there again.

        All watches were lost and nobody is told what changed meanwhile.
        """
        self._regained.append(listener)

    # -- nodes ---

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        """A node, or ``None``. ``changed()`` is called once when it changes, appears or vanishes.

        It is not called if the connection is lost before.
        """
        full = self._root + path
        watcher = None if changed is None else _Watch(self._event, changed)
        while True:
            found = await self._calls.read_if_there(GetData(full, watcher), path)
            if found is None:
                # Only ``exists`` leaves a watch where no node is.
                if watcher is None or await self._calls.read(Exists(full, watcher), path) is None:
                    return None
                continue
            data, stat = found
            return Node(
                data, stat.version, stat.ephemeralOwner, stat.numChildren, stat.czxid, stat.mzxid,
                # The server tells creations and deletions, in 32 bits; the difference is what is
                # there.
                (stat.cversion + stat.numChildren) % (1 << 32) // 2,
            )  # fmt: skip

    async def exists(self, path: str, changed: Callable[[], None]) -> bool:
        """Whether there is a node. ``changed()`` as with ``get``."""
        watcher = _Watch(self._event, changed)
        return await self._calls.read(Exists(self._root + path, watcher), path) is not None

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        """Names of the children, in no order; ``NoNodeError``. ``changed()`` as with ``get``."""
        watcher = None if changed is None else _Watch(self._event, changed)
        names: list[str] = await self._calls.read(GetChildren(self._root + path, watcher), path)
        return names

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        """Create a node below an existing one, and return its path."""
        return str(await self.apply(CreateNode(path, data, ephemeral, sequential)))

    async def set(self, path: str, data: bytes, version: int = ANY) -> int:
        """Change a node's data, and return its new version."""
        changed = await self.apply(SetNode(path, data, version))
        assert isinstance(changed, int)
        return changed

    async def delete(self, path: str, version: int = ANY) -> None:
        """Delete a node without children."""
        await self.apply(DeleteNode(path, version))

    async def apply(self, operation: Operation) -> Result:
        """Do one operation. Errors are those of ``multi``."""
        if isinstance(operation, CheckNode):  # which ZooKeeper has only in a multi
            return (await self.multi((operation,)))[0]
        return self._result(await self._calls.write(self._request(operation), operation.path))

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        """Do all operations or none; they see the results of those before them.

        ``NodeError`` names the one that is refused. ``OutcomeUnknownError``: all may have been
        done, or none, or it may still happen a little later. Any other ``MetadataRefusedError``:
        nothing was or will be done.
        """
        request = Transaction([self._request(operation) for operation in operations])
        answers = await self._calls.write(request, operations[0].path)
        for index, answer in enumerate(answers):
            if isinstance(answer, BaseException) and not isinstance(answer, FOLLOWING):
                raise error_of(answer, operations[index].path, index)
        return [self._result(answer) for answer in answers]

    async def make(self, path: str) -> None:
        """Create a node without data and its parents, where they are missing."""
        parts = path.strip("/").split("/")
        for depth in range(len(parts), 0, -1):
            try:
                await self.create("/" + "/".join(parts[:depth]))
            except NodeExistsError:
                pass
            except NoNodeError:
                continue  # the parent first
            break
        else:
            depth = 0
        for made in range(depth + 1, len(parts) + 1):
            with suppress(NodeExistsError):
                await self.create("/" + "/".join(parts[:made]))

    async def sync(self) -> None:
        """Let this client's later reads see all that was written anywhere before this call.

        Afterwards ``zxid`` is above that of all such writes. ZooKeeper's own sync is answered, too,
        by a leader that has not noticed yet that the others have left it. A multi needs them, and
        this one may be sent again, as a read: it is refused.
        """
        nothing = Transaction([CheckVersion(self._root + NOWHERE, ANY)])
        await self._calls.read(nothing, NOWHERE)

    async def give_signs(self, directory: str) -> None:
        """Keep a node below ``directory``, whose writes show that the session lives."""
        await self.make(directory)
        self._signs = Signs(self, self._clock, directory)
        await self._signs.start()

    async def close(self) -> None:
        """End the session, for which the server may take a moment. Its ephemeral nodes vanish."""
        if self._closed:
            return
        self._closed = True
        if self._signs is not None:
            self._signs.stop()
        if self._asking is not None:
            self._asking.cancel()
        stopped: asyncio.Future[None] = self._loop.create_future()
        self._connection.stop(partial(_settle, stopped))
        self._end("it was closed")
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await stopped

    # -- calls ---

    def _request(self, operation: Operation) -> Any:
        path = self._root + operation.path
        if isinstance(operation, CreateNode):
            flags = operation.ephemeral | 2 * operation.sequential
            return Create(path, operation.data, OPEN_ACL_UNSAFE, flags)
        if isinstance(operation, SetNode):
            return SetData(path, operation.data, operation.version)
        if isinstance(operation, DeleteNode):
            return Delete(path, operation.version)
        return CheckVersion(path, operation.version)

    def _result(self, answer: Any) -> Result:
        if isinstance(answer, str):
            return answer[len(self._root) :]
        version: int | None = getattr(answer, "version", None)
        return version

    def _event(self, changed: Callable[[], None], event: Any) -> None:
        # After a lost connection kazoo calls each watch; ``on_regained`` is told instead.
        if event.type != "NONE" and not self._closed:
            changed()

    # -- the session ---

    def connected(self, session_id: int, timeout_seconds: float) -> None:
        self._refusals = 0
        if not self._first.done():
            self.session_id = session_id
            # The server counts from before now, which the first sign of life puts right.
            self.session = Session(self._clock, timeout_seconds)
            self._calls.is_connected = True
            self._first.set_result(None)
        elif session_id != self.session_id:
            self._end("ZooKeeper has given it another session")
        else:
            log.warning("connected to ZooKeeper at %s again", self.address.hosts)
            self.session.set_timeout(timeout_seconds)  # each server has limits of its own
            self._calls.is_connected = True
            for listener in self._regained:
                listener()
            if self._signs is not None:
                self._signs.give_now()
            self._calls.send_waiting()

    def disconnected(self) -> None:
        if self._calls.is_connected:
            log.warning("the connection to ZooKeeper at %s is lost", self.address.hosts)
        self._calls.is_connected = False

    def lost(self) -> None:
        self._end("ZooKeeper has ended it, or the client has failed")

    def went_back(self) -> None:
        """ZooKeeper lacks something that it had confirmed: whoever goes on with it could be told
        the same version of two values."""
        self._end("ZooKeeper's data are older than what it had confirmed")

    def refused(self) -> None:
        if self.session.has_ended:
            return
        self._refusals += 1
        servers = len(self.address.hosts.split(","))
        if self._refusals >= _REFUSALS_MAX * servers and self._asking is None:
            self._refusals = 0
            if self._connection.zxid:
                self._asking = unattended(
                    self._end_if_older(), "asking how old ZooKeeper's data are"
                )

    async def _end_if_older(self) -> None:
        """Servers refuse who has seen newer data than they have; but also others while they start.

        So a client that has seen nothing asks for their last transaction. What this client sees
        while it asks may be newer, if it is let in meanwhile.
        """
        seen = self._connection.zxid
        try:
            other = await ZooKeeperClient.connect(
                replace(self.address, root=""), self._clock, operation_seconds=_LOOK_SECONDS,
                tls=self._tls,
            )  # fmt: skip
            try:
                await other.sync()
                if other.zxid <= seen:
                    self.went_back()
            finally:
                await other.close()
        except MetadataError as error:
            log.debug("how old ZooKeeper's data are is not known yet: %s", error)
        finally:
            self._asking = None

    def _end(self, reason: str) -> None:
        if not self._closed and not self.session.has_ended:
            log.error("the session with ZooKeeper is over: %s", reason)
        if not self._first.done():
            self._first.set_exception(MetadataError(f"no session with ZooKeeper: {reason}"))
            self._first.exception()  # nobody needs to wait for it
        self._calls.end(reason)
        self.session.end()

    async def _make_root(self) -> None:
        parts = self._root.split("/")[1:]
        root, self._root = self._root, ""
        try:
            if root and await self.get(root) is None:
                await self.make("/" + "/".join(parts))
        finally:
            self._root = root


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
