"""Who is asked, who is anonymous, and what is counted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable
from importlib.metadata import EntryPoint, EntryPoints
from inspect import isawaitable
from typing import Any

import pytest

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.runtime import Runtime
from pulsark.security import providers as providers_module
from pulsark.security.certificates import CertificateProvider
from pulsark.security.failures import Failures
from pulsark.security.limits import FAILED_LOGINS_PER_SECOND_MAX
from pulsark.security.logins import Logins
from pulsark.security.principal import Principal
from pulsark.security.provider import EXPIRED, Credentials, LoginError, Provider
from pulsark.security.providers import providers_of
from tests.support.logging_in import SECRET, SetClock, inline, runtime_of, token
from tests.unit.security.test_certificates import certificate


class Fixed:
    """Lets one text in."""

    reason = "signature"

    def __init__(self, name: str, method: str, scheme: str = "", text: bytes = b"yes") -> None:
        self.name, self.method, self.scheme, self.text = name, method, scheme, text
        self.asked: list[Credentials] = []

    def log_in(self, credentials: Credentials) -> Principal | Awaitable[Principal]:
        self.asked.append(credentials)
        if credentials.data != self.text:
            raise LoginError(self.reason, "no")
        return Principal(self.name, None, self.method, None, credentials.address)


class Slow(Fixed):
    """Takes its time."""

    def log_in(self, credentials: Credentials) -> Awaitable[Principal]:
        async def later() -> Principal:
            await asyncio.sleep(0)
            found = Fixed.log_in(self, credentials)
            assert isinstance(found, Principal)
            return found

        return later()


class ByCertificate(Fixed):
    """Lets in whoever has a certificate."""

    def log_in(self, credentials: Credentials) -> Principal:
        return Principal("cn", None, "tls", None, credentials.address, "cn")


TOKEN, OPENID = Fixed("first", "token", "Bearer"), Fixed("second", "token", "Bearer", b"other")
BASIC, TLS = Fixed("user", "basic", "Basic", b"a:b"), ByCertificate("cn", "tls")
ALL: list[Provider] = [TLS, TOKEN, OPENID, BASIC]


def logins(*providers: Provider, clock: SetClock | None = None, **settings: Any) -> Logins:
    return Logins(Settings(**settings), runtime_of(clock or SetClock()), providers or ALL)


def result(found: Principal | Awaitable[Principal]) -> Principal:
    async def wait() -> Principal:
        return await found if isawaitable(found) else found  # type: ignore[return-value]

    return asyncio.run(wait())


def client(found: Logins, method: str, data: bytes) -> str:
    return result(found.of_client(Credentials(method, data))).role


def request(
    found: Logins, *headers: str, method: str | None = None, certificate: bytes | None = None
) -> str:
    shown = Credentials("", b"", "10.0.0.1:9", certificate)
    return result(found.of_request(headers, method, shown)).role


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_the_method_chooses_and_of_several_the_first_that_accepts() -> None:
    found = logins()
    assert client(found, "token", b"yes") == "first"
    assert client(found, "token", b"other") == "second"
    assert client(found, "basic", b"a:b") == "user"
    assert dict(found.successes) == {("first", "token"): 2, ("user", "basic"): 1}


def test_who_fails_is_never_anonymous() -> None:
    found = logins(anonymousUserRole="nobody")
    for method, data in (("token", b""), ("token", b"wrong"), ("basic", b"yes")):
        with pytest.raises(LoginError):
            client(found, method, data)
    assert dict(found.failures) == {
        ("first", "token", "signature"): 2,
        ("user", "basic", "signature"): 1,
    }


@pytest.mark.parametrize("method", ["none", "", "unknown", "sasl"])
def test_a_method_that_nobody_has_is_anonymous_or_refused(method: str) -> None:
    assert client(logins(anonymousUserRole="nobody"), method, b"yes") == "nobody"
    found = logins()
    with pytest.raises(LoginError):
        client(found, method, b"yes")
    # What a client calls its method makes no new counters.
    assert dict(found.failures) == {("none", "none", "method"): 1}


@pytest.mark.parametrize("first", [Slow, Fixed])
@pytest.mark.parametrize("second", [Slow, Fixed])
def test_providers_that_take_their_time(first: type[Fixed], second: type[Fixed]) -> None:
    found = logins(first("one", "token"), second("two", "token", "", b"other"))
    assert client(found, "token", b"yes") == "one"
    assert client(found, "token", b"other") == "two"
    with pytest.raises(LoginError):
        client(found, "token", b"neither")
    assert dict(found.failures) == {("one", "token", "signature"): 1}


@pytest.mark.parametrize("kind", [Slow, Fixed])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_has_expired_is_known_whoever_else_is_asked(kind: type[Fixed], is_first: bool) -> None:
    """The client is asked for newer credentials then, and not refused."""

    class Expiring(kind):  # type: ignore[valid-type, misc]
        reason = EXPIRED

    both = [Expiring("one", "token"), Fixed("two", "token")]
    with pytest.raises(LoginError) as caught:
        client(logins(*(both if is_first else both[::-1])), "token", b"neither")
    assert caught.value.reason == EXPIRED


class Broken(Fixed):
    """Has a defect."""

    def log_in(self, credentials: Credentials) -> Principal:
        raise ZeroDivisionError


class BrokenLater(Slow):
    """Has a defect, too."""

    def log_in(self, credentials: Credentials) -> Awaitable[Principal]:
        async def later() -> Principal:
            raise ZeroDivisionError

        return later()


@pytest.mark.parametrize("kind", [Broken, BrokenLater])
def test_a_provider_with_a_defect_lets_nobody_in(
    kind: type[Fixed], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LoginError):
        client(logins(kind("one", "token")), "token", b"yes")
    assert client(logins(kind("one", "token"), Fixed("two", "token")), "token", b"yes") == "two"
    assert "the provider one failed" in caplog.text


def test_a_request_logs_in_by_its_header() -> None:
    found = logins(anonymousUserRole="nobody")
    assert request(found, "Bearer yes") == "first"
    assert request(found, "Bearer other") == "second"
    for scheme in ("Basic", "basic", "BASIC"):
        assert request(found, basic("a:b").replace("Basic", scheme)) == "user"
    assert request(found, "Bearer yes", method="token") == "first"
    assert request(found) == "nobody"
    assert request(found, method="none") == "nobody"
    assert result(found.of_request(["Bearer yes"], None, Credentials("", address="a"))) == (
        Principal("first", None, "token", None, "a")
    )


@pytest.mark.parametrize(
    ("headers", "method"),
    [
        (["Bearer no"], None),
        (["bearer yes"], None),
        (["Bearer bearer yes"], None),
        (["Bearer\tyes"], None),
        (["Bearer"], None),
        ([""], None),
        (["yes"], None),
        (["Digest x"], None),
        (["Basic !"], None),
        (["Basic a:b"], None),
        (["Basic \xe9"], None),
        ([basic("a:c")], None),
        (["Bearer yes", "Bearer yes"], None),
        (["Bearer yes"], "basic"),
        (["Bearer yes"], "unknown"),
        ([], "token"),
        ([], "unknown"),
    ],
)
def test_a_header_that_does_not_verify_is_refused(headers: list[str], method: str | None) -> None:
    found = logins(anonymousUserRole="nobody")
    with pytest.raises(LoginError):
        request(found, *headers, method=method)
    assert found.failures.total() == 1
    assert not found.successes


@pytest.mark.parametrize("header", ["Bearer  yes", "Bearer yes ", "Bearer yes\n"])
def test_white_space_around_a_token_is_no_part_of_it(header: str) -> None:
    found = logins(anonymousUserRole="nobody")
    assert request(found, header) == request(found, "Bearer yes")
    assert not found.failures


def test_a_header_wins_over_the_certificate_of_the_connection() -> None:
    found = logins(anonymousUserRole="nobody")
    assert request(found, certificate=b"x") == "cn"
    assert request(found, method="tls", certificate=b"x") == "cn"
    assert request(found, basic("a:b"), certificate=b"x") == "user"
    with pytest.raises(LoginError):
        request(found, "Bearer no", certificate=b"x")


def test_the_certificate_of_a_proxy_wins_over_the_header_of_its_client() -> None:
    found = logins(CertificateProvider(Settings(), Runtime()), TOKEN, proxyRoles=("proxy",))
    for name, role in (("proxy", "proxy"), ("client", "first")):
        assert request(found, "Bearer yes", certificate=certificate(name)) == role
    der = certificate("proxy")
    assert request(found, "Bearer of its client", method="token", certificate=der) == "proxy"
    with pytest.raises(LoginError):
        request(logins(TOKEN, proxyRoles=("proxy",)), "Bearer no", certificate=der)


def test_the_name_in_the_certificate_is_kept() -> None:
    found = logins(anonymousUserRole="nobody")

    def name(header: list[str], der: bytes) -> tuple[str, str | None]:
        principal = result(found.of_request(header, None, Credentials("", certificate=der)))
        return principal.role, principal.cn

    assert name([basic("a:b")], certificate("client")) == ("user", "client")
    assert name([basic("a:b")], certificate("two", "names")) == ("user", None)
    without_tls = Logins(Settings(anonymousUserRole="nobody"), runtime_of(SetClock()), [BASIC])
    shown = Credentials("none", certificate=certificate("client"))
    assert result(without_tls.of_client(shown)) == (
        Principal("nobody", None, "none", None, "", "client")
    )


def test_the_method_may_have_to_be_named() -> None:
    found = logins(strictAuthMethod=True, anonymousUserRole="nobody")
    assert request(found, "Bearer yes", method="token") == "first"
    for headers in ([], ["Bearer yes"]):
        with pytest.raises(LoginError):
            request(found, *headers)


def test_many_failures_of_one_address_are_delayed() -> None:
    clock = SetClock()
    found = logins(clock=clock)
    delays = [found.delay_s("10.0.0.1") for _ in range(FAILED_LOGINS_PER_SECOND_MAX + 2)]
    assert delays == [0.0] * FAILED_LOGINS_PER_SECOND_MAX + [1.0, 1.0]
    assert found.delay_s("10.0.0.2") == 0.0
    clock.ms += 1000
    assert found.delay_s("10.0.0.1") == 0.0


def test_failures_are_forgotten_with_their_second() -> None:
    found = Failures()
    for host in range(1000):
        found.delay_s(str(host), 1.0)
    found.delay_s("a", 2.0)
    assert len(found._of_host) == 1


# -- which providers there are -----------------------------------------------------------------


PULSAR = "org.apache.pulsar.broker.authentication."


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("token",), ["AuthenticationProviderToken"]),
        (
            (f"{PULSAR}AuthenticationProviderTls", f"{PULSAR}AuthenticationProviderToken", "token"),
            ["AuthenticationProviderTls", "AuthenticationProviderToken"],
        ),
        (
            ("basic", f"{PULSAR}oidc.AuthenticationProviderOpenID", "tls"),
            [
                "AuthenticationProviderBasic",
                "AuthenticationProviderOpenID",
                "AuthenticationProviderTls",
            ],
        ),
    ],
)
def test_names_and_order(names: tuple[str, ...], expected: list[str]) -> None:
    settings = Settings(
        authenticationProviders=names,
        tokenSecretKey=inline(SECRET),
        basicAuthConf="data:,",
        openIDAllowedTokenIssuers=("https://id.example",),
        openIDAllowedAudiences=("pulsark",),
    )
    assert [each.name for each in providers_of(settings, Runtime())] == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "authenticationProviders is empty"),
        (("tokn",), r"tokn is not known \(did you mean token\?\)"),
        ((f"{PULSAR}AuthenticationProviderSasl",), "AuthenticationProviderSasl is not known"),
        (("token",), "tokenSecretKey and tokenPublicKey are empty"),
    ],
)
def test_wrong_names_stop_the_start(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Logins(Settings(authenticationProviders=names), Runtime())


class OfAUser(Fixed):
    """What a package of a user brings."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        super().__init__("ldap", "ldap")


def test_a_package_may_bring_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    there = EntryPoints(
        EntryPoint(name, f"{__name__}:{own}", "pulsark.authentication")
        for name, own in (("ldap", "OfAUser"), ("broken", "Nothing"))
    )
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[self.attr])
    monkeypatch.setattr(providers_module, "entry_points", lambda group: there)
    found = Logins(Settings(authenticationProviders=("ldap",)), Runtime())
    assert client(found, "ldap", b"yes") == "ldap"
    with pytest.raises(ConfigError, match="broken cannot be loaded"):
        Logins(Settings(authenticationProviders=("broken",)), Runtime())


def test_a_token_from_setting_to_role() -> None:
    settings = Settings(authenticationProviders=("token",), tokenSecretKey=inline(SECRET))
    found = Logins(settings, runtime_of(SetClock()))
    assert client(found, "token", token()) == "orders"
    assert request(found, f"Bearer {token().decode()}") == "orders"
