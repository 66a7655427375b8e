"""The login of one client, and the refreshing of what it logged in with. Only with authentication.

While a provider takes its time, nothing more is read from the client, and frames stay small. A
client whose credentials expire is asked for new ones; what it does meanwhile goes on. All that
fails is told in the same words, and the cause goes to the log.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING

from pulsark.dispatch.connection import notices
from pulsark.dispatch.connection.refresh import Refresh
from pulsark.errors import ClientError, CrowdedOutError, ServerError
from pulsark.security.credentials import of_connect
from pulsark.security.logged_roles import logged_role
from pulsark.security.provider import EXPIRED, Credentials, LoginError, checked_role
from pulsark.wire.frames import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pulsark.dispatch.connection.connection import Connection
    from pulsark.security.logins import Logins
    from pulsark.security.principal import Principal
    from pulsark.security.trials import Trial
    from pulsark.wire import pulsar_pb2 as pb

log = logging.getLogger(__name__)

_METHOD_CHARS_MAX = 64
"""How much of the name of a login method is kept; all known names are shorter."""

FAILED = "Failed to authenticate"
NO_LOGIN = ClientError(ServerError.AuthenticationError, FAILED)
_WEBSOCKET_PROXY = "__websocket_dummy_original_principle"
"""What Pulsar's WebSocket proxy sends for whom it asks; it verifies its clients itself."""


class Login:
    """Finds out who the client is, when it connects and whenever it has to show that again."""

    def __init__(self, connection: Connection, logins: Logins, trial: Trial | None) -> None:
        self.principal: Principal | None = None
        """Who it is, once that is known."""
        self._connection = connection
        self._logins = logins
        self._trial = trial
        """If its address was on trial when it connected."""
        self._settings = connection.settings
        self._clock = connection.broker.clock
        self._refresh = Refresh(
            self._clock,
            self._settings.authenticationRefreshCheckSeconds,
            self._challenge,
            self._expired,
        )
        self._method = ""
        self._original_ends_ms: int | None = None
        """When what the client behind a proxy showed ends; the proxy cannot renew it."""
        self._told: asyncio.TimerHandle | None = None

    def begin(self, connect: pb.CommandConnect) -> None:
        """The client wants to connect."""
        connection = self._connection
        shown = of_connect(connect, connection.address.lstrip("/"), connection.certificate)
        self._method = shown.method[:_METHOD_CHARS_MAX]
        try:
            if self._trial is None:  # others of its address may have failed since it came
                self._trial = self._logins.begin_trial(connection.host)
            found = self._logins.of_client(shown)
            if self._has_to_ask(connect) or isawaitable(found):
                self._wait(self._ask_original(found, connect), connect)
            else:
                self._accept(_for_original(found, connect.original_principal), connect)
        except CrowdedOutError:
            connection.abort()
        except LoginError as error:
            self._refuse(error)

    def refresh(self, response: pb.AuthData) -> None:
        """The client shows credentials anew, because it was asked or on its own."""
        if not self._refresh.answered():
            return
        connection = self._connection
        shown = Credentials(
            self._method,
            response.auth_data,
            connection.address.lstrip("/"),
            connection.certificate,
        )
        try:
            if response.auth_method_name not in ("", self._method):
                raise LoginError("method", "the method of a refresh is another one")
            found = self._logins.of_client(shown)
        except LoginError as error:
            self._not_refreshed(error)
            return
        if isawaitable(found):
            connection.requests.run(self._refreshed_later(found), NO_REQUEST)
        else:
            self._refreshed(found)

    def close(self) -> None:
        """The client is gone, or not served any more."""
        self._refresh.stop()
        if self._told is not None:
            self._told.cancel()
        # They refer to each other.
        del self._connection, self._refresh

    # -- connecting ---

    def _has_to_ask(self, connect: pb.CommandConnect) -> bool:
        """Whether those of the client behind a proxy are verified here, too."""
        return (
            self._settings.authenticateOriginalAuthData
            and connect.HasField("original_principal")
            and connect.original_principal != _WEBSOCKET_PROXY
        )

    def _wait(self, finding: Awaitable[Principal], connect: pb.CommandConnect) -> None:
        async def finish() -> None:
            try:
                found = await finding
            except LoginError as error:
                self._refuse(error)
            else:
                self._accept(found, connect)

        self._connection.turns.wait()
        self._connection.requests.run(finish(), NO_REQUEST)

    async def _ask_original(
        self, proxy: Principal | Awaitable[Principal], connect: pb.CommandConnect
    ) -> Principal:
        found = await proxy if isawaitable(proxy) else proxy
        if not self._has_to_ask(connect):
            return _for_original(found, connect.original_principal)
        original = self._logins.of_client(
            Credentials(
                connect.original_auth_method or "none",
                connect.original_auth_data.encode(),
                found.address,
            )
        )
        verified = await original if isawaitable(original) else original
        if verified.method == "none":  # nobody has its method: proxy and client are anonymous
            return replace(verified, original=verified.role)
        self._original_ends_ms = verified.expires_ms
        expires_ms = _earlier(found.expires_ms, verified.expires_ms)
        return replace(found, original=verified.role, expires_ms=expires_ms)

    def _accept(self, found: Principal, connect: pb.CommandConnect) -> None:
        connection = self._connection
        refusal = self._roles_refusal(found, connect)
        if refusal:
            log.info("%s: role %s: %s", connection.address, self._shown(found), refusal)
            self._logins.noted(connection.origin, "login", "roles", found)
            self._tell(ClientError(ServerError.AuthorizationError, refusal))
            return
        self.principal = found
        self._logins.pass_trial(self._trial)
        self._trial = None
        connection.connected()
        # Whom a proxy asks for shows nothing here that it could show again.
        can_refresh = connect.feature_flags.supports_auth_refresh and found.original is None
        self._refresh.start(found.expires_ms, can_refresh=can_refresh)
        connection.turns.wait_no_more()

    def _roles_refusal(self, found: Principal, connect: pb.CommandConnect) -> str:
        """What is wrong with who asks for whom; nothing where authorization is off."""
        if self._connection.broker.authorization is None:
            return ""
        from pulsark.security.decisions import roles_of  # for those who need it

        proxies = self._settings.proxyRoles
        if roles_of(found, proxies) is None:
            return "Invalid roles."
        if connect.HasField("proxy_version") and found.role not in proxies:
            return "Must not set proxyVersion without connecting as a ProxyRole."
        return ""

    def _shown(self, principal: Principal | None) -> str:
        return logged_role(principal, self._settings.authenticationRoleLoggingAnonymizer)

    def _refuse(self, error: LoginError) -> None:
        connection = self._connection
        delay = self._logins.delay_s(connection.host, self._trial)
        self._logins.refused(connection.origin, error)
        log.log(
            logging.DEBUG if delay else logging.INFO,
            "%s: login by %.20r failed: %s",
            connection.address,
            self._method,
            error,
        )
        if not delay:
            self._tell()
            return
        connection.turns.wait()
        self._told = asyncio.get_running_loop().call_later(delay, self._tell)

    def _tell(self, error: ClientError = NO_LOGIN) -> None:
        connection = self._connection
        connection.output.send(notices.request_error(NO_REQUEST, error))
        connection.close()

    # -- refreshing ---

    def _challenge(self) -> None:
        connection = self._connection
        version = connection.handshake.protocol_version
        connection.output.send(notices.auth_challenge(self._method, version))

    def _expired(self) -> None:
        connection = self._connection
        log.info(
            "%s: the credentials of role %s have expired, closing",
            connection.address,
            self._shown(self.principal),
        )
        if self.principal is not None:
            self._logins.noted(connection.origin, "expiry", "expired", self.principal)
        connection.close()

    async def _refreshed_later(self, waited: Awaitable[Principal]) -> None:
        try:
            found = await waited
        except LoginError as error:
            self._not_refreshed(error)
        else:
            self._refreshed(found)

    def _not_refreshed(self, error: LoginError) -> None:
        if error.reason != EXPIRED or not self._refresh.ask_again():
            self._refuse(error)

    def _refreshed(self, found: Principal) -> None:
        before = self.principal
        if before is None or found.role != before.role:
            connection = self._connection
            log.info(
                "%s: role %s shows credentials for role %s, closing",
                connection.address,
                self._shown(before),
                self._shown(found),
            )
            self._logins.noted(connection.origin, "refresh", "role", found)
            connection.close()
            return
        expires_ms = _earlier(found.expires_ms, self._original_ends_ms)
        self.principal = replace(before, expires_ms=expires_ms)
        self._refresh.renew(expires_ms)


def _earlier(one: int | None, other: int | None) -> int | None:
    """The first of two ends; ``None`` is never."""
    return min((end for end in (one, other) if end is not None), default=None)


def _for_original(found: Principal, original: str) -> Principal:
    """Whom a proxy says it asks for is believed; whether it is a proxy, is asked elsewhere."""
    return replace(found, original=checked_role(original)) if original else found
