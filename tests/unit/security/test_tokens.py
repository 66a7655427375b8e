"""Tokens that are taken, and all that are not."""

from __future__ import annotations

import base64
import hmac
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from jwt.algorithms import RSAAlgorithm
from jwt.api_jws import PyJWS
from jwt.exceptions import InvalidSignatureError

from pulsark.config.settings import Settings
from pulsark.errors import ConfigError
from pulsark.security.limits import TOKEN_BYTES_MAX, TOKEN_KEYS_MAX
from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError
from pulsark.security.tokens import TokenProvider
from tests.support.logging_in import (
    NOW_MS,
    SECRET,
    SetClock,
    ec_key,
    inline,
    kind_of,
    part,
    public_der,
    public_pem,
    rsa_key,
    runtime_of,
    token,
)

NOW = NOW_MS // 1000


def provider(clock: SetClock | None = None, **settings: Any) -> TokenProvider:
    if not {"tokenSecretKey", "tokenPublicKey"} & settings.keys():
        settings["tokenSecretKey"] = inline(SECRET)
    return TokenProvider(Settings(**settings), runtime_of(clock or SetClock()))


def log_in(data: bytes, **settings: Any) -> Principal:
    return provider(**settings).log_in(Credentials("token", data, "10.0.0.1:9"))


def reason(data: bytes, **settings: Any) -> str:
    with pytest.raises(LoginError) as caught:
        log_in(data, **settings)
    return caught.value.reason


def test_a_token_is_for_its_subject() -> None:
    found = log_in(token({"sub": "orders", "exp": NOW + 60}))
    assert found == Principal("orders", None, "token", NOW_MS + 60_000, "10.0.0.1:9")
    assert log_in(token({"sub": "orders"})).expires_ms is None


@pytest.mark.parametrize("location", ["der", "pem"])
@pytest.mark.parametrize("alg", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_rsa_keys_verify(alg: str, location: str) -> None:
    key = public_der(rsa_key()) if location == "der" else b"\n" + public_pem(rsa_key())
    settings = {"tokenPublicKey": inline(key), "tokenPublicAlg": alg}
    assert log_in(token(key=rsa_key(), alg=alg), **settings).role == "orders"


@pytest.mark.parametrize(
    ("alg", "curve"), [("ES256", ec.SECP256R1), ("ES384", ec.SECP384R1), ("ES512", ec.SECP521R1)]
)
def test_keys_on_curves_verify(alg: str, curve: type[ec.EllipticCurve]) -> None:
    settings = {"tokenPublicKey": inline(public_der(ec_key(curve))), "tokenPublicAlg": alg}
    assert log_in(token(key=ec_key(curve), alg=alg), **settings).role == "orders"


@pytest.mark.parametrize(("size", "algs"), [(32, 1), (48, 2), (64, 3), (100, 3)])
def test_a_secret_takes_the_algorithms_that_it_is_long_enough_for(size: int, algs: int) -> None:
    secret = os.urandom(size)
    # HMAC fills short keys up with zeros, so only the length keeps the longer ones out.
    tokens = [token(key=secret.ljust(64, b"\0"), alg=f"HS{bits}") for bits in (256, 384, 512)]
    for data in tokens[:algs]:
        assert log_in(data, tokenSecretKey=inline(secret)).role == "orders"
    for data in tokens[algs:]:
        assert reason(data, tokenSecretKey=inline(secret)) == "algorithm"


def by_hand(header: Any, claims: Any, key: bytes = SECRET) -> bytes:
    """A token that no library would make."""
    text = part(header) + b"." + part(claims)
    return text + b"." + part(hmac.digest(key, text, "sha256"))


SIGNED = token()
HEAD, BODY, SIGNATURE = SIGNED.split(b".")


FORGED: list[bytes] = [
    b"",
    b"..",
    part({"alg": "none"}) + b"." + BODY + b".",
    *(part({"alg": alg}) + b"." + BODY + b"." + SIGNATURE for alg in ("none", "nOnE", 5, None)),
    part({"typ": "JWT"}) + b"." + BODY + b"." + SIGNATURE,
    HEAD + b"." + BODY + b".",
    HEAD + b"." + BODY,
    SIGNED + b"." + BODY,
    SIGNED + b"." + BODY + b"." + BODY,  # the form of an encrypted token
    json.dumps({"payload": "x", "signatures": []}).encode(),
    SIGNED + b"=",
    SIGNED + b"\n",
    b" " + SIGNED,
    SIGNED.replace(b".", b". "),
    b"bearer " + SIGNED,
    b"Bearer " + SIGNED,
    b"\t" + SIGNED,
    SIGNED[:-2] + b"\xff\xfe",
    b"x" * 65536,
    part(b"[" * 5000) + b"." + BODY + b"." + SIGNATURE,
    part([]) + b"." + BODY + b"." + SIGNATURE,
    token(kid="a" * 10_240),
    part({"alg": "HS256", "kid": 7}) + b"." + BODY + b"." + SIGNATURE,
    token(crit=["x"], x=1),
    by_hand({"alg": "HS256", "b64": True}, {"sub": "a"}),
    by_hand({"alg": "HS256", "b64": False, "crit": ["b64"]}, {"sub": "a"}),
    HEAD + b"." + part({"sub": "admin"}) + b"." + SIGNATURE,
    HEAD + b"." + BODY + b"." + bytes(reversed(SIGNATURE)),
    token(key=os.urandom(32)),
    *(
        token(key=os.urandom(32), **{name: value})
        for name, value in (
            ("kid", "../../etc/passwd"),
            ("kid", "a\0b"),
            ("zip", "DEF"),
        )
    ),
]
"""What the key has not signed, or not by the rules."""


@pytest.mark.parametrize("data", FORGED, ids=kind_of)
def test_what_the_key_has_not_signed_by_the_rules_is_refused(data: bytes) -> None:
    assert reason(data) in ("malformed", "algorithm", "signature")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("jwk", {"kty": "oct", "k": "AAAA"}),
        ("jku", "https://evil/"),
        ("x5u", "https://evil/"),
        ("x5c", ["AAAA"]),
    ],
)
def test_a_token_that_brings_a_key_is_refused_whoever_signed_it(name: str, value: Any) -> None:
    assert reason(token(**{name: value})) == "malformed"


@pytest.mark.parametrize(
    "headers", [{"kid": "../../etc/passwd"}, {"kid": "a\0b"}, {"zip": "DEF"}, {"cty": "JWT"}]
)
def test_headers_that_mean_nothing_here(headers: dict[str, str]) -> None:
    assert log_in(token(**headers)).role == "orders"


@pytest.mark.parametrize("alg", ["HS384", "HS512"])
def test_a_short_secret_verifies_no_longer_algorithm(alg: str) -> None:
    assert reason(token(alg=alg)) == "algorithm"


@pytest.mark.parametrize("form", [public_der, public_pem])
def test_a_public_key_is_no_secret(form: Any) -> None:
    forged = by_hand({"alg": "HS256"}, {"sub": "admin"}, form(rsa_key()))
    assert reason(forged, tokenPublicKey=inline(public_der(rsa_key()))) == "algorithm"


@pytest.mark.parametrize(
    ("alg", "pinned", "key"),
    [("RS256", "ES256", rsa_key), ("PS256", "RS256", rsa_key), ("ES256", "RS256", ec_key)],
)
def test_only_the_one_algorithm_is_taken(alg: str, pinned: str, key: Any) -> None:
    own = ec_key() if pinned == "ES256" else rsa_key()
    settings = {"tokenPublicKey": inline(public_der(own)), "tokenPublicAlg": pinned}
    assert reason(token(key=key(), alg=alg), **settings) == "algorithm"


@pytest.mark.parametrize("signature", [bytes(64), encode_dss_signature(5, 7), b"", bytes(63)])
def test_signatures_on_a_curve_have_one_form(signature: bytes) -> None:
    settings = {"tokenPublicKey": inline(public_der(ec_key())), "tokenPublicAlg": "ES256"}
    head, body, _ = token(key=ec_key(), alg="ES256").split(b".")
    assert reason(head + b"." + body + b"." + part(signature), **settings) in (
        "signature",
        "malformed",
    )


WRONG_CLAIMS: list[tuple[bytes, str]] = [
    (b"[]", "malformed"),
    (b"null", "malformed"),
    (b"x", "malformed"),
    (b"\xff", "malformed"),
    (b"[" * 50_000 + b"]" * 50_000, "malformed"),
    (b'{"sub": "a", "x": NaN}', "malformed"),
    (b'{"sub": "a", "exp": NaN}', "malformed"),
    (b'{"sub": "a", "exp": Infinity}', "malformed"),
    (b'{"sub": "a", "exp": 1' + b"0" * 400 + b"}", "claim"),
    (b'{"sub": "a", "exp": 1' + b"0" * 5000 + b"}", "malformed"),
    (b'{"sub": "a", "exp": 1e400}', "claim"),
    (b'{"sub": "a", "exp": "1900000000"}', "claim"),
    (b'{"sub": "a", "exp": true}', "claim"),
    (b'{"sub": "a", "exp": null}', "claim"),
    (b'{"sub": "a", "exp": -5}', "claim"),
    (b'{"sub": "a", "exp": 10}', "expired"),
    (b'{"sub": "a", "nbf": "x"}', "claim"),
    (json.dumps({"sub": "a", "nbf": NOW + 1}).encode(), "not_yet"),
    (json.dumps({"sub": "a", "exp": NOW}).encode(), "expired"),
    (b"{}", "role"),
    (b'{"sub": ""}', "role"),
    (b'{"sub": "  "}', "role"),
    (b'{"sub": []}', "role"),
    (b'{"sub": [5, "a"]}', "role"),
    (b'{"sub": 5}', "role"),
    (b'{"sub": {}}', "role"),
    (b'{"sub": "a\\u0000b"}', "role"),
    (b'{"sub": "a\\u001bb"}', "role"),
    (b'{"sub": "\\ud800"}', "role"),
    (json.dumps({"sub": "a" * 257}).encode(), "role"),
]
"""What is signed and still not taken, and why."""


@pytest.mark.parametrize(("payload", "why"), WRONG_CLAIMS)
def test_claims_that_are_refused(payload: bytes, why: str) -> None:
    assert reason(token(payload)) == why


@pytest.mark.parametrize(
    ("payload", "role"),
    [
        (json.dumps({"sub": "a", "exp": NOW + 0.5}).encode(), "a"),
        (json.dumps({"sub": "a", "iat": NOW + 1000}).encode(), "a"),
        (json.dumps({"sub": "a", "nbf": NOW}).encode(), "a"),
        (b'{"sub": "a", "sub": "b"}', "b"),
        (b'{"sub": ["first", "second"]}', "first"),
        ('{"sub": "\u0430dmin"}'.encode(), "\u0430dmin"),  # another role than admin
        (b'{"sub": "*"}', "*"),
        (json.dumps({"sub": "a" * 256}).encode(), "a" * 256),
    ],
)
def test_claims_that_are_taken(payload: bytes, role: str) -> None:
    assert log_in(token(payload)).role == role


def test_the_skew_is_for_both_ends() -> None:
    clock = SetClock()
    found = provider(clock, tokenAllowedClockSkewSeconds=5)
    late = Credentials("token", token({"sub": "a", "exp": NOW - 4}))
    assert found.log_in(late).expires_ms == NOW_MS + 1000
    assert found.log_in(Credentials("token", token({"sub": "a", "nbf": NOW + 5}))).role == "a"
    clock.ms += 1000
    with pytest.raises(LoginError, match="expired"):
        found.log_in(late)


def test_without_a_skew_a_millisecond_is_too_late() -> None:
    clock = SetClock()
    found = provider(clock)
    shown = Credentials("token", token({"sub": "a", "exp": NOW + 1}))
    clock.ms += 999
    assert found.log_in(shown).role == "a"
    clock.ms += 1
    with pytest.raises(LoginError, match="expired"):
        found.log_in(shown)


def test_another_claim_may_name_the_role() -> None:
    data = token({"sub": "a", "team": "orders"})
    assert log_in(data, tokenAuthClaim="team").role == "orders"
    assert reason(data, tokenAuthClaim="other") == "role"


def test_the_audience_must_fit() -> None:
    settings = {"tokenAudienceClaim": "aud", "tokenAudience": "here"}
    for taken in ("here", ["there", "here"]):
        assert log_in(token({"sub": "a", "aud": taken}), **settings).role == "a"
    for refused in ({}, {"aud": "there"}, {"aud": ["there", 5, None]}, {"aud": {"here": 1}}):
        assert reason(token({"sub": "a", **refused}), **settings) == "audience"
    assert log_in(token({"sub": "a", "aud": "there"})).role == "a"


def test_a_key_that_is_replaced_refuses_what_the_old_one_signed(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    os.utime(file, ns=(1, 1))
    found = provider(tokenSecretKey=f"file://{file}")
    old, new = Credentials("token", token()), Credentials("token", token(key=SECRET[::-1]))
    assert found.log_in(old).role == "orders"
    file.write_bytes(SECRET[::-1])
    os.utime(file, ns=(2, 2))
    assert found.log_in(new).role == "orders"
    with pytest.raises(LoginError):
        found.log_in(old)


def test_several_keys_are_good_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET[::-1])
    both = f"{inline(SECRET)},{file}"
    for key in (SECRET, SECRET[::-1]):
        assert log_in(token(key=key), tokenSecretKey=both).role == "orders"
    assert reason(token(key=os.urandom(32)), tokenSecretKey=both) == "signature"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The keys by which signatures are verified."""
    found: list[Any] = []
    verify = PyJWS.decode_complete

    def noting(self: PyJWS, token: bytes, key: Any = "", *more: Any, **options: Any) -> Any:
        found.append(key)
        return verify(self, token, key, *more, **options)

    monkeypatch.setattr(PyJWS, "decode_complete", noting)
    return found


def test_a_token_may_name_its_key(tmp_path: Path, tried: list[Any]) -> None:
    """By the name of the key's file: then no other is tried."""
    keys = {name: os.urandom(32) for name in ("2026", "2027", "2028")}
    for name, key in keys.items():
        (tmp_path / f"{name}.key").write_bytes(key)
    several = ",".join(str(tmp_path / f"{name}.key") for name in keys)

    def named(kid: str, key: bytes) -> bytes:
        return PyJWS().encode(b'{"sub": "orders"}', key, "HS256", {"kid": kid}).encode()

    assert log_in(named("2028", keys["2028"]), tokenSecretKey=several).role == "orders"
    assert tried == [keys["2028"]]
    tried.clear()
    assert reason(named("2026", keys["2028"]), tokenSecretKey=several) == "signature"
    assert tried == [keys["2026"]]
    tried.clear()
    # Other issuers have names of their own for keys.
    assert log_in(named("key-of-theirs", keys["2027"]), tokenSecretKey=several).role == "orders"
    assert tried == [keys["2026"], keys["2027"]]
    for forged in ("", "2026.key", "../2026", "x" * 500):
        tried.clear()
        assert reason(named(forged, os.urandom(32)), tokenSecretKey=several) == "signature"
        assert len(tried) == len(keys)


def test_what_a_forged_token_costs_is_bounded() -> None:
    several = ",".join(inline(os.urandom(32)) for _ in range(TOKEN_KEYS_MAX + 1))
    with pytest.raises(ConfigError, match="9 keys are set; at most 8 are allowed"):
        provider(tokenSecretKey=several)


def test_a_very_long_token_is_not_even_looked_at() -> None:
    def long(size: int) -> bytes:
        return token({"sub": "a", "x": "x" * size})

    assert log_in(long(TOKEN_BYTES_MAX // 2)).role == "a"
    assert reason(long(TOKEN_BYTES_MAX)) == "malformed"


def test_a_secret_wins_over_a_public_key() -> None:
    both = {
        "tokenSecretKey": inline(SECRET),
        "tokenPublicKey": inline(public_der(rsa_key())),
    }
    assert log_in(token(), **both).role == "orders"
    assert reason(token(key=rsa_key(), alg="RS256"), **both) == "algorithm"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenSecretKey": ""}, "tokenSecretKey and tokenPublicKey are empty"),
        ({"tokenSecretKey": inline(bytes(31))}, "at least 32 bytes, this one has 31"),
        ({"tokenSecretKey": inline(public_pem(rsa_key()))}, "PEM file, not a secret"),
        ({"tokenPublicKey": inline(b"x" * 64)}, "neither DER nor PEM"),
        ({"tokenPublicKey": inline(public_der(ec_key()))}, "RS256 needs an RSA key"),
        ({"tokenPublicKey": inline(public_der(rsa_key(1024)))}, "1024 bits"),
        (
            {"tokenPublicKey": inline(public_der(rsa_key())), "tokenPublicAlg": "ES256"},
            "secp256r1, this one has no curve",
        ),
        (
            {
                "tokenPublicKey": inline(public_der(ec_key(ec.SECP384R1))),
                "tokenPublicAlg": "ES256",
            },
            "this one has secp384r1",
        ),
        ({"tokenAudienceClaim": "aud"}, "set tokenAudience"),
    ],
)
def test_wrong_settings_stop_the_start(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        provider(**settings)


def test_no_text_shows_a_token() -> None:
    shown = Credentials("token", SIGNED)
    assert SIGNED.decode() not in repr(shown)
    with pytest.raises(LoginError) as caught:
        provider(tokenSecretKey=inline(os.urandom(32))).log_in(shown)
    assert SIGNED.decode() not in repr(caught.value)
    assert base64.b64encode(SECRET).decode() not in repr(Settings(tokenSecretKey=inline(SECRET)))


def test_the_library_is_what_it_was() -> None:
    """What is relied on: a key that is given decides, and not the one in the header."""
    jwk = json.loads(RSAAlgorithm.to_jwk(rsa_key().public_key()))
    forged = token(key=rsa_key(), alg="RS256", jwk=jwk)
    with pytest.raises(InvalidSignatureError):
        PyJWS().decode(forged, rsa_key(3072).public_key(), ["RS256"])
