"""The TLS properties of a connection and its peer."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio


class TlsPeer(NamedTuple):
    """How a connection is secured, and the client's verified certificate."""

    version: str
    cipher: str
    subject: str = ""
    issuer: str = ""
    serial: str = ""
    """Hexadecimal, as OpenSSL shows it."""


def verified_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The peer's verified certificate in DER, if it has one."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else certificate_of(tls)


def certificate_of(tls: ssl.SSLObject | ssl.SSLSocket) -> bytes | None:
    """The same of a connection over TLS."""
    # Without verification, the connection has no certificate details.
    return tls.getpeercert(binary_form=True) if tls.getpeercert() else None


def tls_peer(transport: asyncio.BaseTransport) -> TlsPeer | None:
    """The TLS properties of a connection; ``None`` if it is not encrypted."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else peer_of(tls)


def peer_of(tls: ssl.SSLObject | ssl.SSLSocket) -> TlsPeer:
    """The same of a connection over TLS."""
    version, cipher = tls.version() or "", (tls.cipher() or ("",))[0]
    certificate = certificate_of(tls)
    if certificate is None:
        return TlsPeer(version, cipher)
    from cryptography import x509  # only if there are certificates

    try:
        found = x509.load_der_x509_certificate(certificate)
        subject, issuer = found.subject.rfc4514_string(), found.issuer.rfc4514_string()
        return TlsPeer(version, cipher, subject, issuer, f"{found.serial_number:X}")
    except ValueError:  # OpenSSL accepts some certificates that this library does not
        return TlsPeer(version, cipher)


def refused_certificate(error: OSError) -> str:
    """Why a client's certificate was refused; empty if the handshake failed for other reasons."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "none was shown"
    return ""
