"""Logging in at all ports: which provider is asked, who is anonymous, what is counted.

A client with wrong credentials is refused, never anonymous. A client is anonymous if it sends no
credentials, or, in the binary protocol, names a method that has no provider, as in Pulsar.
"""

from __future__ import annotations

import binascii
import dataclasses
from base64 import b64decode
from collections import Counter
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Protocol

from pulsark.errors import CrowdedOutError
from pulsark.security.complaints import Complaints
from pulsark.security.expiries import Expiries
from pulsark.security.failures import Failures
from pulsark.security.principal import Origin, Principal
from pulsark.security.provider import Credentials, LoginError
from pulsark.security.providers import first_of, providers_of
from pulsark.security.token_ids import digest_id
from pulsark.security.trials import Trials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime
    from pulsark.security.provider import Provider
    from pulsark.security.trials import Trial


_NOBODY = Principal("")
_NO_METHOD = (None, "", "none")


class LoginAudit(Protocol):
    """The audit of logins, if it is on."""

    def login_failed(self, origin: Origin, reason: str, method: str, token_id: str) -> None:
        """A login failed."""

    def login_noted(
        self, origin: Origin, operation: str, detail: str, principal: Principal | None = None
    ) -> None:
        """Another event of a login."""

    def broker(self, operation: str, detail: str = "") -> None:
        """An event of the broker itself."""


class Logins:
    """Authenticates the clients of one broker. Create one only if authentication is on."""

    def __init__(
        self, settings: Settings, runtime: Runtime, providers: Sequence[Provider] | None = None
    ) -> None:
        """Raises ``ConfigError`` if a provider is unknown or lacks a setting."""
        self._providers = providers_of(settings, runtime) if providers is None else providers
        self._anonymous = settings.anonymousUserRole
        self._strict = settings.strictAuthMethod
        self._proxies = settings.proxyRoles
        self._clock = runtime.clock
        self._failures = Failures()
        failures_max = settings.maxFailedLoginsPerSecondPerIp
        self.trials = {via: Trials(failures_max) for via in ("binary", "rest")}
        """Addresses with failed logins, by port: failures at one do not affect the other."""
        self._complaints = Complaints()
        self.expiries = Expiries()
        """The remaining validity of clients' tokens."""
        self.delayed = 0
        """The number of failures whose answers are delayed now."""
        self._audit: LoginAudit | None = None
        self.successes: Counter[tuple[str, str]] = Counter()
        """By provider and method."""
        self.failures: Counter[tuple[str, str, str]] = Counter()
        """By provider, method and reason."""

    def tell(self, audit: LoginAudit) -> None:
        """Report logins, and reloads of the ``kept`` keys, to an audit."""
        self._audit = audit
        for provider in self._providers:
            for kept in getattr(provider, "kept", ()):
                kept.tell(partial(audit.broker, "reload"))

    def refused(self, origin: Origin, error: LoginError) -> None:
        """A port refuses a client."""
        if self._audit is not None:
            self._audit.login_failed(origin, error.reason, error.method, error.token_id)

    def noted(self, origin: Origin, operation: str, detail: str, principal: Principal) -> None:
        """A port reports an event of a client that has logged in."""
        if self._audit is not None:
            self._audit.login_noted(origin, operation, detail, principal)

    def of_client(self, credentials: Credentials) -> Principal | Awaitable[Principal]:
        """The principal of a binary client. Raises ``LoginError``, also when awaited."""
        fit = [each for each in self._providers if each.method == credentials.method]
        if not fit:
            return self._nobody(credentials)
        return self._ask(fit, credentials)

    def of_request(
        self, authorization: Sequence[str], method: str | None, credentials: Credentials
    ) -> Principal | Awaitable[Principal]:
        """The principal of a request over HTTP or Flight.

        ``authorization`` has the values of that header, ``method`` the one of
        ``X-Pulsar-Auth-Method-Name``; ``credentials`` has the address and the certificate.
        """
        if method is None and self._strict:
            raise self._failed([], LoginError("method", "no method is named"), credentials)
        if self._is_of_proxy(credentials):
            return self._without_header(None, credentials)
        if not authorization:
            return self._without_header(method, credentials)
        if len(authorization) > 1:
            error = LoginError("malformed", "several headers of credentials")
            raise self._failed([], error, credentials)
        scheme, space, rest = authorization[0].partition(" ")
        fit = [
            each
            for each in self._providers
            if space and _same_scheme(each.scheme, scheme) and method in (None, each.method)
        ]
        if not fit:
            raise self._failed(
                [], LoginError("method", "no provider takes the header"), credentials
            )
        try:
            data = _decoded(rest) if scheme.lower() == "basic" else rest.encode("latin-1")
        except ValueError:
            shown = dataclasses.replace(credentials, method=fit[0].method)
            raise self._failed(fit, LoginError("malformed", "no base64"), shown) from None
        shown = dataclasses.replace(credentials, method=fit[0].method, data=data)
        return self._ask(fit, shown)

    def has_ended(self, principal: Principal) -> bool:
        """Whether the credentials of a client that has logged in are no longer valid."""
        ends = principal.expires_ms
        return ends is not None and self._clock.now_ms() >= ends

    def begin_trial(self, host: str, via: str = "binary") -> Trial | None:
        """A client connects. ``CrowdedOutError`` if it must not be served: see ``trials``."""
        now = self._clock.monotonic()
        try:
            return self.trials[via].begin(host, now)
        except CrowdedOutError:
            self._complaints.note("crowd", now, host)
            raise

    def pass_trial(self, trial: Trial | None) -> None:
        """A client has logged in."""
        if trial is not None:
            trial.passed(self._clock.monotonic())

    def delay_s(self, host: str, trial: Trial | None = None, via: str = "binary") -> float:
        """A client of this address has failed; returns the delay of the answer in seconds."""
        now = self._clock.monotonic()
        if via in self.trials and (trial is None or trial.is_over):
            self.trials[via].failed(host, now)
        return self._failures.delay_s(host, now)

    def _is_of_proxy(self, credentials: Credentials) -> bool:
        """Whether the certificate is a proxy's; then the header belongs to the proxy's client."""
        if not self._proxies or all(each.method != "tls" for each in self._providers):
            return False
        return _with_name(_NOBODY, credentials).cn in self._proxies

    def _without_header(
        self, method: str | None, credentials: Credentials
    ) -> Principal | Awaitable[Principal]:
        by_certificate = [
            each
            for each in self._providers
            if not each.scheme and method in (None, each.method) and credentials.certificate
        ]
        if by_certificate:
            named = dataclasses.replace(credentials, method=by_certificate[0].method)
            return self._ask(by_certificate, named)
        if method not in _NO_METHOD:
            raise self._failed(
                [], LoginError("method", "no credentials for the method"), credentials
            )
        return self._nobody(credentials)

    def _nobody(self, credentials: Credentials) -> Principal:
        if not self._anonymous:
            error = LoginError("method", "no provider has this method")
            raise self._failed([], error, credentials)
        self.successes["anonymous", "none"] += 1
        found = Principal(self._anonymous, None, "none", None, credentials.address)
        if credentials.data:  # only the binary protocol allows methods without a provider
            self.noted(Origin("binary", credentials.address), "anonymous", "method", found)
        return _with_name(found, credentials)

    def _ask(
        self, providers: Sequence[Provider], credentials: Credentials
    ) -> Principal | Awaitable[Principal]:
        if credentials.method == "token":
            # Clients send what a file has, and files end in a line break. Pulsar takes it, too.
            credentials = dataclasses.replace(credentials, data=credentials.data.strip())
        try:
            found = first_of(providers, credentials)
        except LoginError as error:
            raise self._failed(providers, error, credentials) from None
        if isawaitable(found):
            return self._when_found(providers, credentials, found)
        return self._succeeded(providers, credentials, found)

    async def _when_found(
        self,
        providers: Sequence[Provider],
        credentials: Credentials,
        waited: Awaitable[Principal],
    ) -> Principal:
        try:
            found = await waited
        except LoginError as error:
            raise self._failed(providers, error, credentials) from None
        return self._succeeded(providers, credentials, found)

    def _succeeded(
        self, providers: Sequence[Provider], credentials: Credentials, found: Principal
    ) -> Principal:
        self.successes[providers[0].name, found.method] += 1
        if found.expires_ms is not None:
            self.expiries.add(found.expires_ms - self._clock.now_ms())
        return _with_name(found, credentials)

    def _failed(
        self, providers: Sequence[Provider], error: LoginError, credentials: Credentials
    ) -> LoginError:
        name = providers[0].name if providers else "none"
        if providers:
            error.method = credentials.method
        self.failures[name, error.method, error.reason] += 1
        host = credentials.address.rpartition(":")[0] or credentials.address
        self._complaints.note(error.reason, self._clock.monotonic(), host)
        if error.method == "token" and credentials.data.count(b".") == 2:
            error.token_id = digest_id(credentials.data)
        return error


def _with_name(found: Principal, credentials: Credentials) -> Principal:
    """Add the name in the certificate, whatever the method of the login was."""
    if credentials.certificate is None or found.cn is not None:
        return found
    from pulsark.security.certificates import common_name  # only if there are certificates

    try:
        return dataclasses.replace(found, cn=common_name(credentials.certificate))
    except LoginError:
        return found


def _same_scheme(ours: str, sent: str) -> bool:
    """Whether the scheme matches: ``Bearer`` exactly, as in Pulsar, ``Basic`` in any case."""
    return sent == ours or (ours == "Basic" and sent.lower() == "basic")


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text.encode("latin-1"), validate=True)
    except binascii.Error:
        raise ValueError from None
