"""Requests that the application makes to itself, for its part of what several brokers do."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from starlette.types import Message, Receive, Scope, Send

from pulsark.admin.http.budgets import ACCOUNT, account_of

REQUEST_ID = b"x-request-id"
NAMED = "request-id"
"""Where a request's state has what the audit calls it."""
_KEPT = ("type", "asgi", "http_version", "scheme", "root_path", "client", "server")


def scope_of(
    request: Request,
    method: str,
    target: str,
    headers: list[tuple[bytes, bytes]],
    state: dict[str, Any],
) -> Scope:
    """A request for the application that serves another one, to be routed anew."""
    path, _, query = target.partition("?")
    return {
        **{key: request.scope[key] for key in _KEPT if key in request.scope},
        "method": method,
        "path": path.removesuffix("/") or "/",
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "headers": headers,
        "state": {ACCOUNT: account_of(request), **state},
    }


def replayed(body: bytes) -> Receive:
    """A body that is there already, of a client that stays."""
    waiting = [body]

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": waiting.pop(), "more_body": False}

    return receive


async def answer_of(request: Request, scope: Scope, body: bytes) -> tuple[int, bytes]:
    """The status and the whole answer of such a request."""
    status = 500
    pieces: list[bytes] = []

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))

    await request.app(scope, replayed(body), send)
    return status, b"".join(pieces)


async def serve(request: Request, scope: Scope, body: bytes, send: Send) -> None:
    """The same, whose answer goes to the client."""
    await request.app(scope, replayed(body), send)
