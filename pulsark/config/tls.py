"""The settings of TLS: certificates, versions and ciphers."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.spec import setting


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class TlsSettings:
    """That part of ``Settings``."""

    tlsCertificateFilePath: str = setting(
        "", "path", "PEM file with the certificate of the ports for TLS, and its chain"
    )
    tlsKeyFilePath: str = setting("", "path", "PEM file with the certificate's private key")
    tlsTrustCertsFilePath: str = setting(
        "", "path", "PEM file with the CAs of clients' certificates; empty: none is asked for"
    )
    tlsCrlFilePath: str = setting(
        "",
        "path",
        "PEM file with a list of revoked certificates (CRL) of each CA of tlsTrustCertsFilePath; "
        "empty: nothing is revoked",
        own=True,
    )
    tlsRequireTrustedClientCertOnConnect: bool = setting(
        False, "", "Refuse clients over TLS that have no certificate of tlsTrustCertsFilePath"
    )
    tlsCertRefreshCheckDurationSec: int = setting(
        300, "s", "How often the TLS files are looked at; 0: at each handshake", ge=0
    )
    tlsProtocols: tuple[str, ...] = setting(
        (), "", "Versions of TLS that clients may use; empty: all", choices=("TLSv1.2", "TLSv1.3")
    )
    tlsCiphers: tuple[str, ...] = setting(
        (), "", "Cipher suites of TLS 1.2 that clients may use, by IANA's names; empty: OpenSSL's"
    )
