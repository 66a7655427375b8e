"""What tests of logging in need: keys, tokens, and a runtime whose time they set."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pulsark.runtime import Runtime

T = TypeVar("T")
NOW_MS = 1_800_000_000_000
SECRET = bytes(range(32))


@dataclass
class SetClock:
    """Stands still until it is set."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class InlineWorker:
    """Does each job at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def submit(
        self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None:
        try:
            result = job()
        except Exception as error:
            done(None, error)
        else:
            done(result, None)

    def end(self) -> None:
        """Nothing is left."""

    def close(self) -> None:
        """The same."""


def runtime_of(clock: SetClock) -> Runtime:
    return Runtime(clock=clock, new_worker=InlineWorker)


def token(claims: Any = None, key: Any = SECRET, alg: str = "HS256", **headers: Any) -> bytes:
    """A token; ``claims`` may be the payload's own bytes."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims or {"sub": "orders"})
    data = payload if isinstance(payload, bytes) else payload.encode()
    with warnings.catch_warnings(action="ignore"):  # of keys that are too short
        return jwt.api_jws.encode(data, key, alg, headers=headers or None).encode()


def part(thing: Any) -> bytes:
    """One part of a token that nobody made by the rules."""
    data = thing if isinstance(thing, bytes) else json.dumps(thing).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(curve: type[ec.EllipticCurve] = ec.SECP256R1) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(curve())


def public_der(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def public_pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def private_der(key: Any) -> bytes:
    found: bytes = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return found


def inline(data: bytes) -> str:
    """A setting that holds the data itself."""
    return "data:;base64," + base64.b64encode(data).decode()


def kind_of(thing: object) -> str:
    """The name of a test's parameter that is another one in each process."""
    return type(thing).__name__
