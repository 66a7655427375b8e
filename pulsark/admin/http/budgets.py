"""What one request uses of the budgets of all clients: event-loop time, and memory.

``RequestGate`` is the outermost part of the application, and ``RoomGate`` follows the login. Each
request has an account in its state: the client that its steps, its body and its answer count to. An
answer counts until the client has read it. A client that holds its share gets 503 with
``Retry-After`` before its next request begins.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException, Request

from pulsark.dispatch.output_buffer import OutputBuffer
from pulsark.limits import HTTP_ANSWERS_BYTES_MAX, HTTP_BODIES_BYTES_MAX, HTTP_PIECE_BYTES
from pulsark.rates.shares import SharedBudget
from pulsark.security.decisions import owner_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from pulsark.dispatch.broker import Broker
    from pulsark.security.principal import Principal

ACCOUNT = "account"
"""Where a request's state has its account."""
RETRY_AFTER_SECONDS = 1
_SMALL_BYTES = 1024
"""An answer up to this size always goes out: what was asked for is done."""
_BUSY = "Too many answers and bodies are in memory; read the answers that are on their way first"
BUSY_BODY = json.dumps({"reason": _BUSY}).encode()
"""What the 503 says that a client gets who holds its share."""
ALWAYS_ANSWERED = frozenset({"/status.html", "/admin/v2/brokers/health", "/metrics"})
"""Probes of the process, whose answers have a few bytes or are shared by all who ask."""


class Budgets:
    """The memory of one broker's HTTP requests, in bodies and unread answers."""

    def __init__(self, output: OutputBuffer) -> None:
        """``output`` counts what clients of all protocols have not read."""
        self.answers = SharedBudget(HTTP_ANSWERS_BYTES_MAX)
        self.bodies = SharedBudget(HTTP_BODIES_BYTES_MAX)
        self.output = output
        self._room: asyncio.Event | None = None

    async def room(self) -> None:
        """Wait until an answer was read."""
        if self._room is None:
            self._room = asyncio.Event()
        await self._room.wait()

    def freed(self) -> None:
        """Resume the answers that wait for room."""
        if self._room is not None:
            self._room.set()
            self._room = None


class Account:
    """What one request holds."""

    def __init__(self, budgets: Budgets, owner: str) -> None:
        self.owner = owner
        """The client's address, or its role once it is known."""
        self.shares_its_answer = False
        """Whether the answer is in memory once for all clients, so that it counts to none."""
        self._budgets = budgets
        self._answer: tuple[str, int] = owner, 0
        self._body: tuple[str, int] = owner, 0

    def who(self) -> str:
        """Return the client to whom the request counts."""
        return self.owner

    @property
    def has_room(self) -> bool:
        """Whether the client may hold any answer now."""
        budgets = self._budgets
        if budgets.output.is_full or not budgets.answers.take(self.owner, _SMALL_BYTES):
            return False
        budgets.answers.give_back(self.owner, _SMALL_BYTES)
        return True

    def hold_answer(self, size: int) -> bool:
        """Hold an answer of so many bytes in all; False if the client has its share."""
        owner, held = self._answer
        more = size - held
        if more <= 0 or self.shares_its_answer:
            return True
        if not held:
            owner = self.owner
        if self._budgets.output.is_full or not self._budgets.answers.take(owner, more):
            return False
        self._budgets.output.change(more)
        self._answer = owner, size
        return True

    def expect_answer(self, size: int) -> None:
        """Hold what a large answer will take before it is built; 503 if there is no room."""
        if not self.hold_answer(size):
            raise busy()

    async def wait_for_answer(self, size: int) -> None:
        """Hold so many bytes in all, as soon as there is room."""
        while not self.hold_answer(size):
            await self._budgets.room()

    def hold_body(self, more: int) -> None:
        """Hold a piece of the body; 503 if there is no room."""
        owner, held = self._body
        if not held:
            owner = self.owner
        if not self._budgets.bodies.take(owner, more):
            raise busy()
        self._body = owner, held + more

    def close(self) -> None:
        """Give everything back: the answer was read, or the client is gone."""
        owner, held = self._answer
        if held:
            self._budgets.answers.give_back(owner, held)
            self._budgets.output.change(-held)
            self._answer = owner, 0
            self._budgets.freed()
        owner, held = self._body
        self._budgets.bodies.give_back(owner, held)
        self._body = owner, 0


def busy() -> HTTPException:
    """Return the exception that ends a request for which there is no memory."""
    return HTTPException(503, _BUSY, {"Retry-After": str(RETRY_AFTER_SECONDS)})


def account_of(request: Request) -> Account:
    """Return the account of a request."""
    account: Account = getattr(request.state, ACCOUNT)
    return account


class RequestGate:
    """Gives each request an account, and runs its steps in their turns."""

    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        self._app = app
        self._turns = broker.request_turns
        self._budgets = Budgets(broker.output_buffer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        account = Account(self._budgets, (scope.get("client") or ("", 0))[0])
        state = {**scope.get("state", {}), ACCOUNT: account}
        answer = _Answer(account, send, can_be_refused=scope.get("method") in ("GET", "HEAD"))

        async def serve() -> None:
            await self._app({**scope, "state": state}, receive, answer.send)

        try:
            await self._turns.run(serve(), account.who, str(scope.get("client")))
        finally:
            account.close()


class RoomGate:
    """Lets requests through whose clients may hold another answer.

    It stands behind the login, so that the request counts to the client's role from here on.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        account: Account = scope["state"][ACCOUNT]
        principal: Principal | None = scope["state"].get("principal")
        if principal is not None:
            account.owner = owner_of(principal)
        if account.has_room or scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
        else:
            await send({"type": "http.response.start", **_refusal()})
            await send({"type": "http.response.body", "body": BUSY_BODY})


class _Answer:
    """Sends one answer in pieces, each after the client has read most of those before it."""

    def __init__(self, account: Account, send: Send, *, can_be_refused: bool) -> None:
        self._account = account
        self._send = send
        self._can_be_refused = can_be_refused
        self._start: Message | None = None
        self._is_refused = False

    async def send(self, message: Message) -> None:
        """Send a message of the application."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self._is_refused:
            return
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            if len(body) > _SMALL_BYTES and not self._account.hold_answer(len(body)):
                if self._can_be_refused:
                    self._is_refused = True
                    await self._refuse()
                    return
                await self._account.wait_for_answer(len(body))
            await self._send(start)
        elif body:
            await self._account.wait_for_answer(min(len(body), HTTP_PIECE_BYTES))
        if len(body) <= HTTP_PIECE_BYTES:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
            return
        for begin in range(0, len(body), HTTP_PIECE_BYTES):
            piece = body[begin : begin + HTTP_PIECE_BYTES]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        # Sent once the socket has taken nearly all of the last piece.
        await self._send({"type": "http.response.body", "body": b"", "more_body": more})

    async def _refuse(self) -> None:
        await self._send({"type": "http.response.start", **_refusal()})
        await self._send({"type": "http.response.body", "body": BUSY_BODY})


def _refusal() -> dict[str, Any]:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(BUSY_BODY)).encode()),
        (b"retry-after", str(RETRY_AFTER_SECONDS).encode()),
    ]
    return {"status": 503, "headers": headers}
