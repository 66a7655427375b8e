"""The login of each request, ahead of its route: what is not there is told to nobody unknown."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from pulsark.admin.http.broker_calls import CALL
from pulsark.admin.http.errors import refuse
from pulsark.admin.http.requests import CERTIFICATE, SLOT, TLS_PEER, TRIAL
from pulsark.config.settings import Settings
from pulsark.security.logins import Logins
from pulsark.security.provider import LoginError
from pulsark.security.request_login import REFUSED, log_in

OPEN = ("/status.html",)
"""Says nothing that an open port does not."""


class LoginGate:
    """Lets requests through with their principal in the state, and answers 401 to others.

    Those of brokers of this cluster bring the principal along.
    """

    def __init__(self, app: ASGIApp, logins: Logins, settings: Settings) -> None:
        self._app = app
        self._logins = logins
        metrics = () if settings.authenticateMetricsEndpoint else ("/metrics",)
        self._open = (*OPEN, *metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        state = scope.get("state", {})
        if scope["path"] in self._open or CALL in state:
            self._logins.pass_trial(state.get(TRIAL))
            if CALL in state:
                _known(state)
        else:
            pairs: list[tuple[bytes, bytes]] = scope["headers"]

            def values(name: str) -> list[str]:
                wanted = name.encode()
                return [value.decode("latin-1") for key, value in pairs if key == wanted]

            host, port = scope.get("client") or ("", 0)
            try:
                found = await log_in(
                    self._logins,
                    values,
                    host,
                    port,
                    state.get(CERTIFICATE),
                    tls=state.get(TLS_PEER),
                    trial=state.get(TRIAL),
                )
            except LoginError:
                await refuse(send, 401, REFUSED)
                return
            _known(state)
            state = {**state, "principal": found}
        await self._app({**scope, "state": state}, receive, send)


def _known(state: Any) -> None:
    slot = state.get(SLOT)
    if slot is not None:
        slot.log_in()
