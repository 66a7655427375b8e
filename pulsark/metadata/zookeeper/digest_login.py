"""SASL's DIGEST-MD5 (RFC 2831), which is how ZooKeeper knows clients by name and password. Pure.

The digest keeps the password off the wire, but is weak by now: use it over TLS.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

from pulsark.errors import ProtocolError

SERVICE: Final = "zookeeper/zk-sasl-md5"
"""ZooKeeper has this name whatever its host is."""
_COUNT: Final = "00000001"
_PAIR: Final = re.compile(r'([a-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^,\s]+))')


@dataclass(frozen=True, slots=True)
class DigestLogin:
    """A name and its password."""

    name: str
    password: str = field(repr=False)

    def answer(self, challenge: bytes, nonce: str) -> tuple[bytes, bytes]:
        """What to answer, with a nonce of ours, and what the server says if it knows the password.

        ``ProtocolError`` if that is no challenge.
        """
        found = _parsed(challenge)
        realm, theirs = found.get("realm", ""), found.get("nonce", "")
        if not theirs or found.get("algorithm") != "md5-sess":
            raise ProtocolError("ZooKeeper's challenge cannot be read")
        secret = hashlib.md5(f"{self.name}:{realm}:{self.password}".encode()).digest()
        key = _hex(secret + f":{theirs}:{nonce}".encode())

        def digest(method: str) -> str:
            asked = _hex(f"{method}:{SERVICE}".encode())
            return _hex(f"{key}:{theirs}:{_COUNT}:{nonce}:auth:{asked}".encode())

        told = (
            f"charset=utf-8,username={_quoted(self.name)},realm={_quoted(realm)},"
            f"nonce={_quoted(theirs)},nc={_COUNT},cnonce={_quoted(nonce)},"
            f'digest-uri="{SERVICE}",response={digest("AUTHENTICATE")},qop=auth'
        )
        return told.encode(), f"rspauth={digest('')}".encode()


def _parsed(challenge: bytes) -> dict[str, str]:
    try:
        text = challenge.decode()
    except UnicodeDecodeError:
        return {}
    return {
        key: re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
        for key, quoted, plain in _PAIR.findall(text)
    }


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _hex(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()
