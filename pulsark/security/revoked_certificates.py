"""Lists of certificates that their CAs have revoked (CRLs), for clients of the ports over TLS."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.security.limits import CRL_FILE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.x509 import CertificateRevocationList

_BLOCK = re.compile(rb"-----BEGIN ([^-\n]{1,64})-----")


def refuse_revoked(context: ssl.SSLContext, path: str) -> None:
    """Refuse clients whose certificates are in a file's lists. ``ConfigError`` if it has none.

    OpenSSL also refuses clients of a CA without a list that is still valid.
    """
    _check(path)
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(f"tlsCrlFilePath: {path} cannot be used: {error}") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def lists_in(data: bytes) -> Iterator[CertificateRevocationList]:
    """The lists in a file. ``ValueError`` if it contains anything else."""
    from cryptography import x509  # only for the doctor: a broker leaves lists to OpenSSL

    begin = b"-----BEGIN X509 CRL-----"
    for block in data.split(begin)[1:]:
        yield x509.load_pem_x509_crl(begin + block)


def _check(path: str) -> None:
    """The file must have no certificate: OpenSSL would trust it as a CA."""
    try:
        with open(path, "rb") as file:
            data = file.read(CRL_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"tlsCrlFilePath: {path}: {error.strerror}") from error
    if len(data) > CRL_FILE_BYTES_MAX:
        raise ConfigError(f"tlsCrlFilePath: {path} is larger than {CRL_FILE_BYTES_MAX} bytes")
    if set(_BLOCK.findall(data)) != {b"X509 CRL"}:
        raise ConfigError(
            f"tlsCrlFilePath: {path} must have lists of revoked certificates in PEM, "
            "-----BEGIN X509 CRL-----, and nothing else"
        )
