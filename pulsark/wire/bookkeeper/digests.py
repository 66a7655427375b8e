"""Check values of entries, and the keys that bookies ask of writers."""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

import google_crc32c

if TYPE_CHECKING:
    from collections.abc import Callable


class DigestType(IntEnum):
    """The numbers that ledgers' metadata has."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


_CRC32 = struct.Struct(">q")
_CRC32C = struct.Struct(">I")


class LedgerKey:
    """How the entries of a ledger are checked and who may write it: digest type and password.

    The password keeps nobody from reading.
    """

    def __init__(self, digest: DigestType = DigestType.CRC32C, password: bytes = b"") -> None:
        self.digest = digest
        self.password = password
        self.master_key = hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()
        """Whoever touches a ledger first at a bookie sets it there; later ones must have it."""
        self.check: Callable[[bytes, bytes], bytes] = {
            DigestType.CRC32: _crc32,
            DigestType.HMAC: self._hmac,
            DigestType.CRC32C: _crc32c,
            DigestType.DUMMY: _nothing,
        }[digest]
        """The digest of an entry, from its first 32 bytes and its payload."""
        self.digest_size = len(self.check(b"", b""))

    @cached_property
    def _mac_key(self) -> bytes:
        return hashlib.sha1(b"mac" + self.password, usedforsecurity=False).digest()

    def _hmac(self, head: bytes, payload: bytes) -> bytes:
        mac = hmac.new(self._mac_key, head, "sha1")
        mac.update(payload)
        return mac.digest()


def _crc32(head: bytes, payload: bytes) -> bytes:
    return _CRC32.pack(zlib.crc32(payload, zlib.crc32(head)))


def _crc32c(head: bytes, payload: bytes) -> bytes:
    return _CRC32C.pack(google_crc32c.extend(google_crc32c.value(head), payload))


def _nothing(_head: bytes, _payload: bytes) -> bytes:
    return b""


PLAIN = LedgerKey()
"""What Pulsar uses: CRC32C and the empty password."""
