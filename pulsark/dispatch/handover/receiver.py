"""Receives clients' sockets from other brokers' processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from pulsark.dispatch.handover.sender import GIVEN
from pulsark.limits import HANDOVER_SENDERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = logging.getLogger(__name__)

_TAKEN_PER_TURN: Final = 16

_PAUSE_SECONDS: Final = 0.2
"""After that time there may be free descriptors again."""


class Receiver:
    """The receiver of one broker."""

    def __init__(self, address: str, serve: Callable[[socket.socket], None]) -> None:
        """Listen on a Unix socket that only this user may open."""
        self._address = address
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._senders: set[socket.socket] = set()
        self._resuming: asyncio.TimerHandle | None = None
        """Runs while nothing is received, because there is no free descriptor."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)  # left by a process that died
        before = os.umask(0o177)
        try:
            self._listener.bind(address)
        finally:
            os.umask(before)
        self._listener.listen(HANDOVER_SENDERS_MAX)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Receive no more clients; senders find no listener."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._address)
        for sender in list(self._senders):
            self._forget(sender)

    def _accept(self) -> None:
        try:
            sender, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(str(error))
            return
        if len(self._senders) >= HANDOVER_SENDERS_MAX:
            log.error(
                "%s: %d processes already pass on clients; refusing another one",
                self._address, HANDOVER_SENDERS_MAX,
            )  # fmt: skip
            sender.close()
            return
        sender.setblocking(False)
        self._senders.add(sender)
        self._loop.add_reader(sender, self._take, sender)

    def _pause(self, why: str) -> None:
        """Leave clients where they are, in the queues of their senders."""
        if self._resuming is not None:
            return
        log.warning("handover: cannot receive clients, trying again soon: %s", why)
        for one in (self._listener, *self._senders):
            self._loop.remove_reader(one)
        self._resuming = self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)
        for sender in self._senders:
            self._loop.add_reader(sender, self._take, sender)

    def _take(self, sender: socket.socket) -> None:
        for _ in range(_TAKEN_PER_TURN):
            if not _has_room(sender):
                self._pause("there is no free descriptor")
                return
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    sender, len(GIVEN) + 1, 2, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._forget(sender)
                return
            if data == GIVEN and not descriptors and flags & socket.MSG_CTRUNC:
                # Somebody was faster: the system has closed this client, the others are there.
                self._pause("there is no free descriptor, and a client is lost")
                return
            if data != GIVEN or len(descriptors) != 1 or flags & socket.MSG_CTRUNC:
                if data or descriptors:
                    log.error("handover: dropped an invalid message from another process")
                _close(descriptors)
                self._forget(sender)
                return
            client = _client(descriptors[0])
            if client is not None:
                self._serve(client)

    def _forget(self, sender: socket.socket) -> None:
        self._senders.discard(sender)
        self._loop.remove_reader(sender)
        sender.close()


def _has_room(sender: socket.socket) -> bool:
    """Whether there is a free descriptor: a client that comes without one is lost."""
    try:
        os.close(os.dup(sender.fileno()))
    except OSError:
        return False
    return True


def _client(descriptor: int) -> socket.socket | None:
    try:
        client = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
    else:
        if client.family in (socket.AF_INET, socket.AF_INET6):
            client.setblocking(False)
            return client
        client.close()
    log.error("handover: dropped a descriptor that is not a TCP socket")
    return None


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
