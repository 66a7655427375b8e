"""The settings of TLS: certificates, versions and ciphers."""

from __future__ import annotations

from dataclasses import dataclass

from pulsark.config.spec import setting


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class TlsSettings:
    """That part of ``Settings``."""

    tlsCertificateFilePath: str = setting(
        "", "path", "PEM file with the certificate of the TLS ports, and its chain"
    )
    tlsKeyFilePath: str = setting("", "path", "PEM file with the certificate's private key")
    tlsTrustCertsFilePath: str = setting(
        "", "path", "PEM file with the CAs of client certificates; empty: none are requested"
    )
    tlsCrlFilePath: str = setting(
        "",
        "path",
        "PEM file with a certificate revocation list (CRL) of each CA in tlsTrustCertsFilePath; "
        "empty: none",
        own=True,
    )
    tlsRequireTrustedClientCertOnConnect: bool = setting(
        False, "", "Refuse TLS clients without a certificate by a CA in tlsTrustCertsFilePath"
    )
    tlsCertRefreshCheckDurationSec: int = setting(
        300, "s", "How often the TLS files are checked for changes; 0: at each handshake", ge=0
    )
    tlsProtocols: tuple[str, ...] = setting(
        (), "", "Versions of TLS that clients may use; empty: all", choices=("TLSv1.2", "TLSv1.3")
    )
    tlsCiphers: tuple[str, ...] = setting(
        (), "", "Cipher suites of TLS 1.2 that clients may use, by IANA's names; empty: OpenSSL's"
    )
