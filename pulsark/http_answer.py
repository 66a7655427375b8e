"""The answer to an HTTP/1.1 request, as it comes. Who asked reads the socket, and names the errors.

h11 implements the protocol; it is installed because uvicorn needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h11

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class HttpAnswer:
    """One answer: ``begin``, then ``pieces`` or ``read``."""

    def __init__(
        self,
        connection: h11.Connection,
        receive: Callable[[], Awaitable[bytes]],
        broken: Callable[[str], Exception],
    ) -> None:
        """``receive`` waits for bytes, and limits how long; the end of a connection is none.

        ``broken`` makes the error that is raised if the answer does not come whole.
        """
        self._connection = connection
        self._receive = receive
        self._broken = broken
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []

    async def begin(self) -> None:
        """Wait for status and headers."""
        while not isinstance(event := await self._next(), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise self._broken("the connection ended before the answer began")
        self.status = event.status_code
        self.headers = list(event.headers)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it arrives."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise self._broken("the connection ended within the answer")

    async def read(self, most: int) -> bytes:
        """The whole body, which has at most so many bytes."""
        found = bytearray()
        async for piece in self.pieces():
            found += piece
            if len(found) > most:
                raise self._broken(f"the answer has more than {most} bytes")
        return bytes(found)

    async def _next(self) -> Any:
        data = None
        while True:
            try:
                event = self._connection.next_event()
                if event is not h11.NEED_DATA:
                    return event
                data = await self._receive()
                self._connection.receive_data(data)
            except OSError as error:
                raise self._broken(str(error) or type(error).__name__) from None
            except h11.RemoteProtocolError as error:
                # h11 speaks of its own states when the other side hangs up.
                said = "the connection ended before the answer did" if data == b"" else str(error)
                raise self._broken(said) from None
