"""Certificates, keys and tokens for brokers that are locked, made by the run that needs them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

TOKEN_SECONDS = 24 * 3600

Algorithm = Literal["HS256", "RS256"]


class Certificate(NamedTuple):
    """A certificate for this machine, which is its own CA, and its key."""

    path: Path
    key_path: Path

    @classmethod
    def make(cls, folder: Path) -> Certificate:
        """RSA of 2048 bits, which both brokers and the clients can read."""
        made = cls(folder / "cert.pem", folder / "key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        command += ["-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        command += ["-keyout", str(made.key_path), "-out", str(made.path)]
        subprocess.run(command, check=True, capture_output=True)
        return made


class Signer:
    """Signs tokens, and knows what a broker needs to verify them."""

    def __init__(self, folder: Path, algorithm: Algorithm = "HS256") -> None:
        self._algorithm = algorithm
        self._key: Any = bytes(range(32))
        verifies, setting = self._key, "tokenSecretKey"
        if algorithm == "RS256":
            self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
            verifies, setting = _public(self._key), "tokenPublicKey"
        path = folder / f"{algorithm}.key"
        path.write_bytes(verifies)
        self.settings: dict[str, object] = {
            "authenticationEnabled": "true",
            "authenticationProviders": "token",
            setting: path,
            "authorizationEnabled": "true",
            "superUserRoles": "admin",
        }

    def token(self, role: str) -> str:
        """One that is good for longer than any run."""
        claims = {"sub": role, "exp": time.time() + TOKEN_SECONDS}
        return jwt.encode(claims, self._key, self._algorithm)


def forged(token: str) -> str:
    """A token with another signature: the broker finds out at its last step."""
    head, _, signature = token.rpartition(".")
    return f"{head}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"


def _public(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
