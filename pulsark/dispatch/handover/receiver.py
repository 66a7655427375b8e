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


class Receiver:
    """The receiver of one broker."""

    def __init__(self, address: str, serve: Callable[[socket.socket], None]) -> None:
        """Listen on a Unix socket that only this user may open."""
        self._address = address
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._senders: set[socket.socket] = set()
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
        self._loop.remove_reader(self._listener)
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._address)
        for sender in list(self._senders):
            self._forget(sender)

    def _accept(self) -> None:
        try:
            sender, _ = self._listener.accept()
        except OSError:
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

    def _take(self, sender: socket.socket) -> None:
        for _ in range(_TAKEN_PER_TURN):
            try:
                data, descriptors, flags, _ = socket.recv_fds(
                    sender, len(GIVEN) + 1, 2, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._forget(sender)
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
