"""Tokens of issuers, and how their keys are found."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.security.limits import KEY_FILE_BYTES_MAX
from pulsark.security.openid import Fetcher, OpenIdProvider
from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError
from tests.support.logging_in import NOW_MS, SetClock, ec_key, rsa_key, runtime_of, token

ISSUER = "https://id.example/realm"
DISCOVERY = f"{ISSUER}/.well-known/openid-configuration"
KEYS = f"{ISSUER}/keys"
NOW = NOW_MS // 1000
CLAIMS = {
    "iss": ISSUER,
    "sub": "orders",
    "aud": ["pulsark"],
    "iat": NOW,
    "nbf": NOW,
    "exp": NOW + 10**6,
}


def jwk(key: Any, kid: str | None, **said: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if hasattr(key, "key_size") and key is not ec_key() else ECAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    return found | ({"kid": kid} if kid else {}) | said


class Web:
    """What is at each address, and what was asked for."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = list(keys) or [jwk(rsa_key(), "one")]
        self.discovery: Any = {"issuer": ISSUER, "jwks_uri": KEYS}
        self.asked: list[str] = []
        self.is_down = False

    def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.is_down:
            raise OSError("no route")
        found = {DISCOVERY: self.discovery, KEYS: {"keys": self.keys}}[url]
        return json.dumps(found).encode()


def settings(**more: Any) -> Settings:
    given: dict[str, Any] = {
        "openIDAllowedTokenIssuers": (ISSUER,),
        "openIDAllowedAudiences": ("pulsark",),
    }
    return Settings(**(given | more))


def provider(web: Web, clock: SetClock | None = None, **more: Any) -> OpenIdProvider:
    return OpenIdProvider(settings(**more), runtime_of(clock or SetClock()), web.fetch)


def signed(claims: dict[str, Any] | None = None, kid: str = "one", **more: Any) -> bytes:
    return token(claims or CLAIMS, rsa_key(), "RS256", kid=kid, **more)


async def log_in(found: OpenIdProvider, data: bytes) -> Principal:
    result = found.log_in(Credentials("token", data, "10.0.0.1:9"))
    return await result if isawaitable(result) else result


def refused(found: OpenIdProvider, data: bytes) -> str:
    with pytest.raises(LoginError) as caught:
        asyncio.run(log_in(found, data))
    return caught.value.reason


def test_the_keys_are_fetched_for_the_first_token_only() -> None:
    web = Web()
    found = provider(web)

    async def ask() -> None:
        first = await asyncio.gather(*(log_in(found, signed()) for _ in range(3)))
        expected = Principal("orders", None, "token", (NOW + 10**6) * 1000, "10.0.0.1:9")
        assert first == [expected] * 3
        assert not isawaitable(found.log_in(Credentials("token", signed())))

    asyncio.run(ask())
    assert web.asked == [DISCOVERY, KEYS]


@pytest.mark.parametrize("name", ["iss", "sub", "iat", "exp", "nbf", "aud"])
def test_each_claim_is_needed(name: str) -> None:
    claims = {key: value for key, value in CLAIMS.items() if key != name}
    assert refused(provider(Web()), signed(claims)) == ("issuer" if name == "iss" else "claim")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil/"}, "issuer"),
        ({"iss": ISSUER + "/"}, "issuer"),
        ({"iss": [ISSUER]}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"exp": NOW - 1}, "expired"),
        ({"nbf": NOW + 1}, "not_yet"),
        ({"sub": ""}, "role"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, Any], why: str) -> None:
    web = Web()
    assert refused(provider(web), signed(CLAIMS | claims)) == why
    assert all(url.startswith(ISSUER) for url in web.asked)


def test_what_another_key_has_signed_is_refused() -> None:
    forged = token(CLAIMS, rsa_key(3072), "RS256", kid="one")
    assert refused(provider(Web()), forged) == "signature"


@pytest.mark.parametrize(
    ("said", "why"),
    [({"alg": "RS512"}, "algorithm"), ({"use": "enc"}, "signature")],
)
def test_a_key_is_good_for_what_it_says(said: dict[str, Any], why: str) -> None:
    assert refused(provider(Web(jwk(rsa_key(), "one", **said))), signed()) == why


def test_a_key_that_is_too_short_is_good_for_nothing(caplog: pytest.LogCaptureFixture) -> None:
    weak = rsa_key(1024)
    forged = token(CLAIMS, weak, "RS256", kid="weak")
    assert refused(provider(Web(jwk(weak, "weak"), jwk(rsa_key(), "one"))), forged) == "signature"
    assert "the RSA key 'weak' has 1024 bits" in caplog.text


def test_keys_on_curves_and_tokens_without_a_key_id() -> None:
    web = Web(jwk(rsa_key(), None), jwk(ec_key(), None))
    found = provider(web)
    for key, alg in ((rsa_key(), "RS256"), (ec_key(), "ES256")):
        assert asyncio.run(log_in(found, token(CLAIMS, key, alg))).role == "orders"


def test_a_key_that_is_not_known_is_asked_for_once_in_a_while() -> None:
    web, clock = Web(), SetClock()
    found = provider(web, clock)
    asyncio.run(log_in(found, signed()))
    web.keys.append(jwk(rsa_key(), "two"))
    assert refused(found, signed(kid="two")) == "signature"
    assert len(web.asked) == 2
    clock.ms += 300_000
    assert asyncio.run(log_in(found, signed(kid="two"))).role == "orders"
    assert refused(found, signed(kid="three")) == "signature"
    assert len(web.asked) == 4


def test_keys_are_fetched_again_before_they_are_too_old() -> None:
    web, clock = Web(), SetClock()
    found = provider(web, clock)

    async def ask() -> None:
        await log_in(found, signed())
        clock.ms += 64_800_000
        web.is_down = True
        for _ in range(2):  # in the meantime the old ones are good; they are asked for once
            await log_in(found, signed())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(web.asked) == 3
        clock.ms += 21_600_000
        with pytest.raises(LoginError):
            await log_in(found, signed())
        with pytest.raises(LoginError):
            await log_in(found, signed())
        assert len(web.asked) == 4  # nobody makes the broker ask at each token
        web.is_down = False
        clock.ms += 5000
        assert (await log_in(found, signed())).role == "orders"

    asyncio.run(ask())


@pytest.mark.parametrize(
    "discovery",
    [
        {"issuer": "https://evil/", "jwks_uri": KEYS},
        {"issuer": ISSUER},
        {"issuer": ISSUER, "jwks_uri": "http://id.example/keys"},
        [],
    ],
)
def test_an_issuer_must_say_that_it_is_itself(
    discovery: Any, caplog: pytest.LogCaptureFixture
) -> None:
    web = Web()
    web.discovery = discovery
    assert refused(provider(web), signed()) == "signature"
    assert web.asked == [DISCOVERY]
    assert "cannot fetch the keys of the issuer https://id.example/realm" in caplog.text


def test_who_waits_and_is_gone_does_not_end_the_fetching() -> None:
    web = Web()
    found = provider(web)

    async def ask() -> None:
        gone = asyncio.ensure_future(log_in(found, signed()))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(log_in(found, signed()))
        gone.cancel()
        assert (await waiting).role == "orders"

    asyncio.run(ask())


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [jwk(rsa_key(), "one")]}))
    web = Web()
    found = provider(web, openIDJwksFile=str(file))
    assert asyncio.run(log_in(found, signed())).role == "orders"
    assert refused(found, signed(kid="two")) == "signature"
    assert web.asked == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"openIDAllowedTokenIssuers": ()}, "openIDAllowedTokenIssuers is empty"),
        ({"openIDAllowedAudiences": ()}, "openIDAllowedAudiences is empty"),
        ({"openIDAllowedTokenIssuers": ("http://a",)}, "http://a is not an https:// URL"),
        ({"openIDJwksFile": "/nowhere"}, "openIDJwksFile: "),
        ({"openIDJwksFile": "data:,{}"}, "not a JWK set"),
        ({"openIDTokenIssuerTrustCertsFilePath": "/nowhere"}, "cannot be read"),
    ],
)
def test_wrong_settings_stop_the_start(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenIdProvider(settings(**more), runtime_of(SetClock()))


def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> HTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_documents_are_fetched_without_redirects_and_up_to_a_size() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        moved = request.path == "/moved"
        request.send_response(302 if moved else 200)
        if moved:
            request.send_header("Location", "/found?x=1")
        request.end_headers()
        large = request.path == "/large"
        request.wfile.write(bytes(KEY_FILE_BYTES_MAX + 1) if large else request.path.encode())

    server = serving(answer)
    url = f"http://127.0.0.1:{server.server_port}"
    fetcher = Fetcher(settings())
    try:
        assert fetcher.fetch(f"{url}/found?x=1") == b"/found?x=1"
        with pytest.raises(ValueError, match="status 302"):
            fetcher.fetch(f"{url}/moved")
        with pytest.raises(ValueError, match="larger than"):
            fetcher.fetch(f"{url}/large")
        with pytest.raises(ValueError, match="not an HTTP URL"):
            fetcher.fetch("file:///etc/passwd")
    finally:
        server.shutdown()
        server.server_close()


def test_a_document_that_comes_a_byte_at_a_time_is_given_up() -> None:
    ended = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while not ended.wait(0.02):
            request.wfile.write(b" ")

    server = serving(answer)
    fetcher = Fetcher(settings())
    fetcher._whole_s = 0.1
    try:
        with pytest.raises(TimeoutError, match=r"it takes longer than 0\.1 s"):
            fetcher.fetch(f"http://127.0.0.1:{server.server_port}/slow")
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
