"""What TLS knows of the other side of a connection."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import asyncio


class TlsPeer(NamedTuple):
    """How a connection is secured, and whom the client's verified certificate names."""

    version: str
    cipher: str
    subject: str = ""
    issuer: str = ""
    serial: str = ""
    """In hexadecimal, as OpenSSL shows it."""


def verified_certificate(transport: asyncio.BaseTransport) -> bytes | None:
    """The peer's certificate in DER, if it came with one that was verified."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else certificate_of(tls)


def certificate_of(tls: ssl.SSLObject | ssl.SSLSocket) -> bytes | None:
    """The same of a connection over TLS."""
    # What was not verified has no details.
    return tls.getpeercert(binary_form=True) if tls.getpeercert() else None


def tls_peer(transport: asyncio.BaseTransport) -> TlsPeer | None:
    """What is to be noted of a connection; ``None`` if it is in the clear."""
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else peer_of(tls)


def peer_of(tls: ssl.SSLObject | ssl.SSLSocket) -> TlsPeer:
    """The same of a connection over TLS."""
    version, cipher = tls.version() or "", (tls.cipher() or ("",))[0]
    certificate = certificate_of(tls)
    if certificate is None:
        return TlsPeer(version, cipher)
    from cryptography import x509  # where there are certificates

    try:
        found = x509.load_der_x509_certificate(certificate)
        subject, issuer = found.subject.rfc4514_string(), found.issuer.rfc4514_string()
        return TlsPeer(version, cipher, subject, issuer, f"{found.serial_number:X}")
    except ValueError:  # of a form that OpenSSL takes all the same
        return TlsPeer(version, cipher)


def refused_certificate(error: OSError) -> str:
    """Why a client's certificate was not taken; empty if the handshake failed otherwise."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "none was shown"
    return ""
