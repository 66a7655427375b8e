"""A CA of a test's own, and certificates from it, as files."""

from __future__ import annotations

from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Authority:
    """A CA whose certificates are files of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()
        self.trust = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.trust))

    def issue(self, name: str, common_name: str | None = None) -> tuple[str, str]:
        """The files of a certificate and its key, in the one form that all clients read."""
        issued = self._authority.issue_cert(name, common_name=common_name)
        certificate = self.folder / f"{common_name or name}.pem"
        key = certificate.with_suffix(".key")
        key.touch(mode=0o600)
        loaded = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return str(certificate), str(key)
