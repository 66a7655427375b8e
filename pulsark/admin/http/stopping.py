"""Requests that are under way when the broker stops."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.admin.http.errors import refuse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)


class Stopping:
    """Answers 503 where a request is cancelled, which only the end of the broker does.

    Such a request waits for another system, mostly for the metadata store. Whether its change was
    made there is not known.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        has_begun = False

        async def noted(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            log.warning("%s %s is not answered: this broker stops", scope["method"], scope["path"])
            if not has_begun:
                reason = "this broker stops; what was asked of it may be done or not: try again"
                await refuse(send, 503, reason)
