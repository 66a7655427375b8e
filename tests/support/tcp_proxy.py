"""A TCP proxy whose connections can be cut as a network is: nothing is closed, nothing arrives.

What is sent meanwhile arrives when the cut is mended, as TCP would send it again. It knows which
process of this machine a connection comes from, so one of several clients can be cut off, in one
direction or in both. It needs no rights.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import Literal

Direction = Literal["to server", "to client"]
BOTH: tuple[Direction, Direction] = ("to server", "to client")
_CHUNK_BYTES = 1 << 16


class Network:
    """The event loop of the proxies of a test, in a thread of its own, and what is cut."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._cut: set[tuple[int, int, Direction]] = set()
        """By process of the client, and port of the server."""
        self._mended = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Close all connections."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def proxy(self, server_port: int) -> int:
        """The port of a new proxy before a port of this machine."""
        return self._call(self._listen(server_port))

    def cut(
        self, client: int, *server_ports: int, directions: tuple[Direction, ...] = BOTH
    ) -> None:
        """Let nothing pass between a client's process and servers, on old and new connections."""
        self._cut |= {(client, port, way) for port in server_ports for way in directions}

    def mend(self) -> None:
        """Let all pass again."""
        self._cut.clear()
        self._call(self._wake())

    def _call(self, what):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _wake(self) -> None:
        async with self._mended:
            self._mended.notify_all()

    async def _listen(self, server_port: int) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            with suppress(OSError, asyncio.CancelledError):
                await self._relay(reader, writer, server_port)
            writer.close()
            self._tasks.discard(task)

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port: int = listener.sockets[0].getsockname()[1]
        return port

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server_port: int
    ) -> None:
        client_port = writer.get_extra_info("peername")[1]
        client = await asyncio.to_thread(_process_at, client_port)
        server = await asyncio.open_connection("127.0.0.1", server_port)
        pumps = [
            asyncio.ensure_future(self._pump(reader, server[1], (client, server_port, BOTH[0]))),
            asyncio.ensure_future(self._pump(server[0], writer, (client, server_port, BOTH[1]))),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            server[1].close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: tuple[int, int, Direction],
    ) -> None:
        while True:
            data = await reader.read(_CHUNK_BYTES)
            async with self._mended:  # also the end of a connection is not heard of
                await self._mended.wait_for(lambda: way not in self._cut)
            if not data:
                return
            writer.write(data)
            await writer.drain()


def _process_at(port: int) -> int:
    """The process with the connection from a port of this machine; 0 if it is gone."""
    wanted = f"0100007F:{port:04X}"
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table]
    inodes = {f"socket:[{line[9]}]" for line in lines if line[1] == wanted}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{name}") in inodes:
                        return int(pid)
    return 0
