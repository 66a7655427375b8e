"""Tokens of OpenID Connect, signed by issuers that publish their keys.

A thread fetches an issuer's keys when its first token arrives, and the provider caches them. The
broker calls only issuers that the operator named, and none often: tokens with unknown keys make it
fetch again only once in a while.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from jwt.api_jwk import PyJWKSet
from jwt.exceptions import PyJWTError

from pulsark.errors import ConfigError
from pulsark.runtime import run_in_worker
from pulsark.security.keys import Kept
from pulsark.security.limits import ISSUER_RETRY_SECONDS, KEY_FILE_BYTES_MAX
from pulsark.security.provider import Credentials, LoginError
from pulsark.security.tokens import (
    RSA_BITS_MIN,
    TokenRules,
    VerificationKey,
    claims_of,
    header_of,
    principal_of,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime, Worker
    from pulsark.security.principal import Principal

    Fetch = Callable[[str], bytes]

log = logging.getLogger(__name__)

_RSA = ("RS256", "RS384", "RS512")
_BY_CURVE = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_DISCOVERY = "/.well-known/openid-configuration"
_READS_MAX = 3
"""How often the timeout of a read a document may take in all."""
_REQUIRED = ("iss", "sub", "iat", "exp", "nbf", "aud")


@dataclass(frozen=True, slots=True)
class NamedKey:
    """A key of an issuer."""

    kid: str | None
    key: VerificationKey


def keys_of(setting: str, data: bytes) -> list[NamedKey]:
    """The keys for signatures in a JWK set. Raises ``ConfigError``."""
    try:
        found = PyJWKSet.from_json(data.decode())
    except (PyJWTError, ValueError, RecursionError, AttributeError, TypeError):
        raise ConfigError(f"{setting}: not a JWK set with a key of a known kind") from None
    named = []
    for each in found.keys:
        said: dict[str, Any] = each._jwk_data  # noqa: SLF001 - what it says of curve and algorithm
        fits = _RSA if each.key_type == "RSA" else (_BY_CURVE.get(said.get("crv", "")),)
        algorithms = tuple(a for a in fits if a and said.get("alg", a) == a)
        if each.key_type == "RSA" and each.key.key_size < RSA_BITS_MIN:
            bits = each.key.key_size
            log.warning(
                "%s: the RSA key %.99r has %d bits, and is not used", setting, each.key_id, bits
            )
        elif algorithms and each.public_key_use in (None, "sig"):
            named.append(NamedKey(each.key_id, VerificationKey(each.key, algorithms)))
    return named


class Issuer:
    """The cached keys of one issuer."""

    def __init__(self, url: str, times: Times) -> None:
        self.url = url
        self.under_way: asyncio.Future[None] | None = None
        self._times = times
        self._keys: list[NamedKey] | None = None
        self._fetched = self._tried = -1e9

    def keys(self, kid: str | None, now: float) -> list[VerificationKey] | None:
        """The keys for a token with ``kid``; ``None`` if they must be fetched first."""
        if self._keys is None or now - self._fetched >= self._times.expire_s:
            return None if now - self._tried >= ISSUER_RETRY_SECONDS else []
        found = [each.key for each in self._keys if kid is None or each.kid == kid]
        if not found and now - self._tried >= self._times.unknown_s:
            return None
        return found

    def is_old(self, now: float) -> bool:
        """Whether the keys are still valid, but should be fetched again."""
        tried, fetched = now - self._tried, now - self._fetched
        return fetched >= self._times.refresh_s and tried >= ISSUER_RETRY_SECONDS

    def asked(self, now: float) -> None:
        """A fetch of the keys begins."""
        self._tried = now

    def found(self, keys: list[NamedKey], now: float) -> None:
        """Replace the keys."""
        self._keys, self._fetched = keys, now


@dataclass(frozen=True, slots=True)
class Times:
    """How long an issuer's keys are valid, in seconds."""

    refresh_s: float
    expire_s: float
    unknown_s: float


class OpenIdProvider:
    """Logs in with tokens of the issuers in ``openIDAllowedTokenIssuers``."""

    name = "AuthenticationProviderOpenID"
    method = "token"
    scheme = "Bearer"

    def __init__(self, settings: Settings, runtime: Runtime, fetch: Fetch | None = None) -> None:
        _check(settings)
        self._fetch = fetch or Fetcher(settings).fetch
        self._with_https = settings.openIDRequireIssuersUseHttps
        self._runtime = runtime
        self._worker: Worker | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        times = Times(
            settings.openIDCacheRefreshAfterWriteSeconds,
            settings.openIDCacheExpirationSeconds,
            settings.openIDKeyIdCacheMissRefreshSeconds,
        )
        self._issuers = {url: Issuer(url, times) for url in settings.openIDAllowedTokenIssuers}
        self._file = None
        if settings.openIDJwksFile:
            self._file = Kept(
                "openIDJwksFile",
                settings.openIDJwksFile,
                lambda data: keys_of("openIDJwksFile", data),
            )
        self.kept = () if self._file is None else (self._file,)
        self._rules = TokenRules(
            settings.openIDRoleClaim,
            "aud",
            settings.openIDAllowedAudiences,
            settings.openIDAcceptedTimeLeewaySeconds * 1000,
            _REQUIRED,
        )

    def log_in(self, credentials: Credentials) -> Principal | Awaitable[Principal]:
        """The principal of a token."""
        kid = header_of(credentials.data).get("kid")
        issuer = self._issuer_of(credentials.data)
        if self._file is not None:
            named = self._file.value
            return self._verify(
                credentials, [each.key for each in named if kid is None or each.kid == kid]
            )
        now = self._runtime.clock.monotonic()
        keys = issuer.keys(kid, now)
        if keys is None or (not keys and issuer.under_way is not None):
            return self._when_fetched(credentials, issuer, kid)
        if issuer.is_old(now):
            self._ask(issuer)
        return self._verify(credentials, keys)

    def _issuer_of(self, token: bytes) -> Issuer:
        """The issuer that a token names, not verified."""
        name = claims_of(token).get("iss")
        issuer = self._issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise LoginError("issuer", "the token's issuer is not in openIDAllowedTokenIssuers")
        return issuer

    def _verify(self, credentials: Credentials, keys: Sequence[VerificationKey]) -> Principal:
        return principal_of(credentials, keys, self._rules, self._runtime.clock.now_ms())

    async def _when_fetched(
        self, credentials: Credentials, issuer: Issuer, kid: str | None
    ) -> Principal:
        # Several clients may wait for the keys, and one of them may leave.
        await asyncio.wait([self._ask(issuer)])
        keys = issuer.keys(kid, self._runtime.clock.monotonic()) or []
        return self._verify(credentials, keys)

    def _ask(self, issuer: Issuer) -> asyncio.Future[None]:
        """Fetch the keys, unless a fetch is under way."""
        if issuer.under_way is None:
            issuer.asked(self._runtime.clock.monotonic())
            task = asyncio.get_running_loop().create_task(self._fetch_keys(issuer))
            issuer.under_way = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return issuer.under_way

    async def _fetch_keys(self, issuer: Issuer) -> None:
        if self._worker is None:
            self._worker = self._runtime.new_worker("openid")
        try:
            keys = await run_in_worker(self._worker, lambda: self._discover(issuer.url))
            issuer.found(keys, self._runtime.clock.monotonic())
        except (OSError, ValueError, http.client.HTTPException, ConfigError) as error:
            log.warning("cannot fetch the keys of the issuer %s: %s", issuer.url, error)
        finally:
            issuer.under_way = None

    def _discover(self, url: str) -> list[NamedKey]:
        """In the thread: look up where the issuer's keys are, and fetch them."""
        try:
            said = json.loads(self._fetch(url.removesuffix("/") + _DISCOVERY))
        except RecursionError:
            raise ValueError("its configuration is nested too deep") from None
        if not isinstance(said, dict) or said.get("issuer") != url:
            raise ValueError("its configuration names another issuer")
        place = said.get("jwks_uri")
        if not isinstance(place, str) or (self._with_https and not place.startswith("https://")):
            raise ValueError("its configuration has no jwks_uri with https")
        return keys_of("jwks_uri", self._fetch(place))


def _check(settings: Settings) -> None:
    """Raises ``ConfigError`` naming what is missing."""
    if not settings.openIDAllowedTokenIssuers:
        raise ConfigError("openIDAllowedTokenIssuers is empty: name the issuers that are trusted")
    if not settings.openIDAllowedAudiences:
        raise ConfigError("openIDAllowedAudiences is empty: name the audiences of tokens")
    for issuer in settings.openIDAllowedTokenIssuers:
        wanted = ("https",) if settings.openIDRequireIssuersUseHttps else ("https", "http")
        if urlsplit(issuer).scheme not in wanted:
            raise ConfigError(
                f"openIDAllowedTokenIssuers: {issuer[:200]} is not an https:// URL; "
                "openIDRequireIssuersUseHttps=false allows http://"
            )


class Fetcher:
    """Fetches small documents: no redirects, no proxies, bounded in time and size.

    The timeouts are those of single reads; a document may take some of them in all.
    """

    def __init__(self, settings: Settings) -> None:
        self._connect_s = settings.openIDHttpConnectionTimeoutMillis / 1000
        self._read_s = settings.openIDHttpReadTimeoutMillis / 1000
        self._whole_s = self._connect_s + _READS_MAX * self._read_s
        trusted = settings.openIDTokenIssuerTrustCertsFilePath or None
        try:
            self._context = ssl.create_default_context(cafile=trusted)
        except OSError as error:
            raise ConfigError(
                f"openIDTokenIssuerTrustCertsFilePath: {trusted} cannot be read: {error}"
            ) from None

    def fetch(self, url: str) -> bytes:
        """The document at a URL. Raises ``OSError``, ``ValueError`` or ``HTTPException``."""
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in ("https", "http"):
            raise ValueError("this is not an HTTP URL")
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=self._connect_s, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=self._connect_s
            )
        late = _Late(connection)
        timer = threading.Timer(self._whole_s, late.cut)
        timer.daemon = True
        timer.start()
        try:
            connection.connect()
            late.socket = connection.sock  # the connection forgets it when the answer begins
            connection.sock.settimeout(self._read_s)
            found = self._document(connection, parts)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if late.is_now:
                raise TimeoutError(f"it takes longer than {self._whole_s:g} s") from error
            raise
        finally:
            timer.cancel()
            connection.close()
        if late.is_now:  # what came of it looks whole
            raise TimeoutError(f"it takes longer than {self._whole_s:g} s")
        return found

    def _document(self, connection: http.client.HTTPConnection, parts: SplitResult) -> bytes:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"it answers with status {answer.status}")
        data = answer.read(KEY_FILE_BYTES_MAX + 1)
        if len(data) > KEY_FILE_BYTES_MAX:
            raise ValueError(f"its answer is larger than {KEY_FILE_BYTES_MAX} bytes")
        return data


class _Late:
    """Ends a fetch that takes too long, from another thread."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.is_now = False
        self.socket: socket.socket | None = None
        self._connection = connection

    def cut(self) -> None:
        """What still comes is too late: whoever reads it is woken."""
        self.is_now = True
        with suppress(OSError, AttributeError):  # it is not open yet, or closed already
            (self.socket or self._connection.sock).shutdown(socket.SHUT_RDWR)
