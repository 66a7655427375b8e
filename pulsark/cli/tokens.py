"""``pulsark tokens``: keys and tokens in Pulsar's formats.

A secret is its bytes and nothing else. A private key is PKCS#8 and a public key an X.509
SubjectPublicKeyInfo, both in DER; they are read in PEM, too. A key is named like one in a setting.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from pulsark.cli.terminal.errors import CommandError
from pulsark.config.authentication import TOKEN_ALGORITHMS
from pulsark.errors import ConfigError
from pulsark.runtime import SystemClock
from pulsark.security.keys import read_location
from pulsark.security.provider import Credentials, LoginError, checked_role
from pulsark.security.tokens import (
    TokenRules,
    check_key,
    claims_of,
    header_of,
    principal_of,
    public_key,
    secret_key,
)

_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_CURVES: dict[str, type[ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}
_RSA_BITS = {"256": 2048, "384": 3072, "512": 4096}
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


def write_secret_key(output: str, algorithm: str, *, as_text: bool) -> None:
    """A new secret, into a file or to stdout."""
    if algorithm not in _SECRET_BYTES:
        raise CommandError(f"-a {algorithm}: a secret is for one of {', '.join(_SECRET_BYTES)}")
    data = os.urandom(_SECRET_BYTES[algorithm])
    if as_text:
        data = base64.b64encode(data)
    if output:
        _write_new(output, data, 0o600)
    else:
        sys.stdout.buffer.write(data + (b"\n" if as_text else b""))
        sys.stdout.flush()


def write_key_pair(private: str, public: str, algorithm: str) -> None:
    """A new private and public key, into files."""
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in _CURVES:
        key = ec.generate_private_key(_CURVES[algorithm]())
    elif algorithm in TOKEN_ALGORITHMS:
        key = rsa.generate_private_key(65537, _RSA_BITS[algorithm[2:]])
    else:
        raise CommandError(
            f"-a {algorithm}: a key pair is for one of {', '.join(TOKEN_ALGORITHMS)}"
        )
    _write_new(private, key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    _write_new(
        public,
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        0o644,
    )


def print_token(
    subject: str,
    secret: str,
    private: str,
    expires: str,
    algorithm: str,
    headers: Mapping[str, str],
    output: str,
) -> None:
    """A new token, into a file that only its owner reads, or to stdout."""
    key, algorithm = _signing_key(secret, private, algorithm)
    try:
        claims: dict[str, Any] = {"sub": checked_role(subject)}
    except LoginError as error:
        raise CommandError(f"-s: {error}") from None
    if expires:
        claims["exp"] = SystemClock().now_ms() // 1000 + _seconds(expires)
    made = jwt.encode(claims, key, algorithm, headers=dict(headers))
    if output:
        _write_new(output, made.encode(), 0o600)
    else:
        print(made)


def show_token(token: str) -> None:
    """Print the header and the claims of a token, without verifying it."""
    data = _token(token)
    try:
        header, claims = header_of(data), claims_of(data)
    except LoginError as error:
        raise CommandError(str(error)) from None
    print(json.dumps(header, separators=(",", ":")))
    print("---")
    print(json.dumps(claims, separators=(",", ":")))


def validate_token(token: str, secret: str, public: str, algorithm: str) -> None:
    """The claims of a token that a broker with this key would take."""
    data = _token(token)
    if bool(secret) == bool(public):
        raise CommandError("give the key by which to verify: -sk for a secret, or -pk")
    if secret:
        key = secret_key("-sk", read_location("-sk", secret))
    else:
        _check_name(algorithm)
        key = public_key("-pk", read_location("-pk", public), algorithm)
    try:
        principal_of(Credentials("token", data), [key], TokenRules("sub"), SystemClock().now_ms())
    except LoginError as error:
        raise CommandError(str(error)) from None
    print(json.dumps(claims_of(data), separators=(",", ":")))


def _signing_key(secret: str, private: str, algorithm: str) -> tuple[Any, str]:
    if bool(secret) == bool(private):
        raise CommandError("give the key that signs: -sk for a secret, or -pk for a private key")
    if secret:
        verifying = secret_key("-sk", read_location("-sk", secret))
        algorithm = algorithm or verifying.algorithms[0]
        if algorithm not in verifying.algorithms:
            raise CommandError(
                f"-a {algorithm}: with this secret one of {', '.join(verifying.algorithms)}"
            )
        return verifying.key, algorithm
    key = _private_key(read_location("-pk", private))
    if not algorithm:
        algorithm = "RS256"
        if isinstance(key, ec.EllipticCurvePrivateKey):
            fits = (name for name, curve in _CURVES.items() if isinstance(key.curve, curve))
            algorithm = next(fits, "ES256")
    _check_name(algorithm)
    check_key("-pk", key.public_key(), algorithm)
    return key, algorithm


def _check_name(algorithm: str) -> None:
    if algorithm not in TOKEN_ALGORITHMS:
        raise CommandError(f"-a {algorithm}: with a key pair one of {', '.join(TOKEN_ALGORITHMS)}")


def _private_key(data: bytes) -> Any:
    load = load_pem_private_key if b"-----BEGIN " in data else load_der_private_key
    try:
        return load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError("-pk: neither DER nor PEM of a private key (PKCS#8)") from None


def _seconds(text: str) -> int:
    found = re.fullmatch("([0-9]{1,9})([smhdwy])", text)
    if found is None or not int(found[1]):
        raise CommandError(f"-e {text}: a number and a unit, as 1y, 2w, 30d, 12h, 5m or 20s")
    return int(found[1]) * _UNIT_SECONDS[found[2]]


def _token(text: str) -> bytes:
    return (sys.stdin.read() if text == "-" else text).strip().encode()


def _write_new(path: str, data: bytes, mode: int) -> None:
    """Never over a file that is there: it may be the key of a running cluster."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}") from error
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)  # the umask would keep a public key from its readers
        file.write(data)
