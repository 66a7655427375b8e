"""Tokens: signed JSON web tokens, by a secret or a public key.

The keys determine the algorithms that a token may use. A library verifies the signature; times are
compared with the broker's clock here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key
from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError

from pulsark.errors import ConfigError
from pulsark.security.keys import Kept
from pulsark.security.limits import TOKEN_BYTES_MAX, TOKEN_HEADER_CHARS_MAX, TOKEN_KEYS_MAX
from pulsark.security.principal import Principal
from pulsark.security.provider import EXPIRED, Credentials, LoginError, checked_role
from pulsark.security.token_ids import token_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime

_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
_HMAC_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA_BITS_MIN = 2048
_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TIME_MAX = 2**53
_SEVERAL = re.compile("data:[^,]*,[^,]*|[^,]+")

_REFUSED = frozenset(("crit", "b64", "jwk", "jku", "x5c", "x5u"))
"""Forbidden header fields: other signing rules, or a key that the sender chose."""

_jws = PyJWS()


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key, and the algorithms that its signatures may use."""

    key: Any
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The claims that a token must have."""

    role_claim: str
    audience_claim: str = ""
    audiences: tuple[str, ...] = ()
    skew_ms: int = 0
    required: tuple[str, ...] = ()


def secret_key(setting: str, data: bytes) -> VerificationKey:
    """A secret, with the algorithms that it is long enough for. Raises ``ConfigError``."""
    fits = tuple(name for name, size in _HMAC_BYTES.items() if len(data) >= size)
    if not fits:
        raise ConfigError(
            f"{setting}: a secret needs at least 32 bytes, this one has {len(data)}; "
            "pulsark tokens create-secret-key makes one"
        )
    if b"-----BEGIN " in data:
        raise ConfigError(f"{setting}: this is a PEM file, not a secret; see tokenPublicKey")
    return VerificationKey(data, fits)


def public_key(setting: str, data: bytes, algorithm: str) -> VerificationKey:
    """A public key in DER or PEM that fits the algorithm. Raises ``ConfigError``."""
    try:
        if data.lstrip().startswith(b"-----BEGIN "):
            key: Any = load_pem_public_key(data.lstrip())
        else:
            key = load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{setting}: neither DER nor PEM of a public key (X.509 SubjectPublicKeyInfo)"
        ) from None
    check_key(setting, key, algorithm)
    return VerificationKey(key, (algorithm,))


def check_key(setting: str, key: object, algorithm: str) -> None:
    """Raises ``ConfigError`` if a public key does not fit an algorithm."""
    if algorithm in _CURVES:
        curve = key.curve.name if isinstance(key, EllipticCurvePublicKey) else "no curve"
        if curve != _CURVES[algorithm]:
            raise ConfigError(
                f"{setting}: {algorithm} needs a key on {_CURVES[algorithm]}, this one has {curve}"
            )
    elif not isinstance(key, RSAPublicKey):
        raise ConfigError(f"{setting}: {algorithm} needs an RSA key, and this is another kind")
    elif key.key_size < RSA_BITS_MIN:
        raise ConfigError(
            f"{setting}: the RSA key has {key.key_size} bits; it needs {RSA_BITS_MIN}"
        )


class TokenProvider:
    """Logs in with tokens that the configured keys have signed."""

    name = "AuthenticationProviderToken"
    method = "token"
    scheme = "Bearer"

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self.kept = keys_of(settings)
        self._rules = rules_of(settings)

    def log_in(self, credentials: Credentials) -> Principal:
        """The principal of a token."""
        kept = self._kept_for(credentials.data)
        keys = [each.value for each in kept]
        return principal_of(credentials, keys, self._rules, self._clock.now_ms())

    def _kept_for(self, token: bytes) -> list[Kept[VerificationKey]]:
        """The key that the token names by its ``kid``; all keys if none has that name."""
        if len(self.kept) == 1:
            return self.kept
        kid = header_of(token).get("kid")
        return [kept for kept in self.kept if kept.name and kept.name == kid] or self.kept


def keys_of(settings: Settings) -> list[Kept[VerificationKey]]:
    """The configured keys, separated by commas. Secrets override public keys."""
    found = _keys_of(settings)
    if len(found) > TOKEN_KEYS_MAX:  # a forged token costs one verification per key
        raise ConfigError(
            f"tokenSecretKey, tokenPublicKey: {len(found)} keys are set; "
            f"at most {TOKEN_KEYS_MAX} are allowed"
        )
    return found


def _keys_of(settings: Settings) -> list[Kept[VerificationKey]]:
    algorithm = settings.tokenPublicAlg
    if settings.tokenSecretKey:
        return [
            Kept("tokenSecretKey", location, lambda data: secret_key("tokenSecretKey", data))
            for location in _SEVERAL.findall(settings.tokenSecretKey)
        ]
    if not settings.tokenPublicKey:
        raise ConfigError(
            "tokenSecretKey and tokenPublicKey are empty, and authenticationProviders includes "
            "tokens: set one of them. pulsark tokens create-secret-key makes a key"
        )
    return [
        Kept("tokenPublicKey", location, lambda data: public_key("tokenPublicKey", data, algorithm))
        for location in _SEVERAL.findall(settings.tokenPublicKey)
    ]


def rules_of(settings: Settings) -> TokenRules:
    """The rules in the settings. Raises ``ConfigError``."""
    if settings.tokenAudienceClaim and not settings.tokenAudience:
        raise ConfigError("tokenAudienceClaim is set: set tokenAudience to what it must contain")
    audiences = (settings.tokenAudience,) if settings.tokenAudienceClaim else ()
    return TokenRules(
        settings.tokenAuthClaim,
        settings.tokenAudienceClaim,
        audiences,
        settings.tokenAllowedClockSkewSeconds * 1000,
    )


def principal_of(
    credentials: Credentials, keys: Sequence[VerificationKey], rules: TokenRules, now_ms: int
) -> Principal:
    """The principal of a token that one of the keys has signed. Pure. Raises ``LoginError``."""
    token = credentials.data
    header_of(token)
    claims = _claims(_payload(token, keys))
    for name in rules.required:
        if name not in claims:
            raise LoginError("claim", f"the token has no {name}")
    expires_ms = _check_times(claims, rules.skew_ms, now_ms)
    if rules.audience_claim:
        _check_audience(claims.get(rules.audience_claim), rules.audiences)
    role = claims.get(rules.role_claim)
    if isinstance(role, list):
        role = role[0] if role else None
    named = token_id(token, claims)
    return Principal(
        checked_role(role), None, "token", expires_ms, credentials.address, token_id=named
    )


def header_of(token: bytes) -> dict[str, Any]:
    """The unverified header of a token in compact form. Raises ``LoginError``."""
    found = _COMPACT.fullmatch(token) if len(token) <= TOKEN_BYTES_MAX else None
    if found is None or len(found[1]) > TOKEN_HEADER_CHARS_MAX:
        raise LoginError("malformed", "this is not a token, which has three parts in base64url")
    try:
        header: dict[str, Any] = _jws.get_unverified_header(token)
    except PyJWTError:
        raise LoginError("malformed", "the token's header cannot be read") from None
    if not _REFUSED.isdisjoint(header):
        raise LoginError("malformed", "the token's header asks for something that is not supported")
    return header


def claims_of(token: bytes) -> dict[str, Any]:
    """The unverified claims of a token. Raises ``LoginError``."""
    try:
        payload = _jws.decode_complete(token, options={"verify_signature": False})["payload"]
    except PyJWTError:
        raise LoginError("malformed", "the token's claims cannot be read") from None
    return _claims(payload)


def _payload(token: bytes, keys: Sequence[VerificationKey]) -> bytes:
    reason = LoginError("signature", "no configured key has signed the token")
    for each in keys:
        try:
            found: bytes = _jws.decode_complete(token, each.key, each.algorithms)["payload"]
        except PyJWTError as error:
            if type(error).__name__ == "InvalidAlgorithmError":
                reason = LoginError("algorithm", "the token's algorithm is not that of the key")
            continue
        return found
    raise reason


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        claims = json.loads(payload.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise LoginError("malformed", "the token's claims are not JSON") from None
    if not isinstance(claims, dict):
        raise LoginError("malformed", "the token's claims are not a JSON object")
    return claims


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_times(claims: dict[str, Any], skew_ms: int, now_ms: int) -> int | None:
    """When a token expires; raises if it has expired or is not valid yet."""
    begins = _time_ms(claims, "nbf")
    if begins is not None and now_ms < begins - skew_ms:
        raise LoginError("not_yet", "the token is not valid yet")
    expires = _time_ms(claims, "exp")
    if expires is None:
        return None
    if now_ms >= expires + skew_ms:
        raise LoginError(EXPIRED, "the token has expired")
    return expires + skew_ms


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    if name not in claims:
        return None
    found = claims[name]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < _TIME_MAX:
        raise LoginError("claim", f"{name} of the token is not a time")
    return int(found * 1000)


def _check_audience(found: object, wanted: tuple[str, ...]) -> None:
    audiences = found if isinstance(found, list) else [found]
    if not any(isinstance(each, str) and each in wanted for each in audiences):
        raise LoginError("audience", "the token is for another audience")
