"""TLS server contexts, which are recreated when their files change.

A listener keeps one context. At each handshake this context delegates to the newest one, so a new
certificate, key or list of CAs applies to the next connection; a half-written file applies to none.
Sessions are never resumed, because a resumed session would keep the role of an old certificate.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.security.keys import Stamp, is_open_to_all, stamp_of
from pulsark.security.revoked_certificates import refuse_revoked
from pulsark.security.server_names import tell_nobody_of_wrong_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pulsark.config.settings import Settings

log = logging.getLogger(__name__)

Alpn = tuple[str, ...]
Stamps = tuple[Stamp, ...]

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CIPHERS = {
    f"TLS_{exchange}_WITH_{name}": f"{exchange.replace('_', '-')}-{short}"
    for exchange in ("ECDHE_RSA", "ECDHE_ECDSA", "DHE_RSA")
    for name, short in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""TLS 1.2 cipher suites: IANA's names, which Pulsar's settings use, and OpenSSL's."""
_CIPHERS_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""TLS 1.3 cipher suites. OpenSSL always allows all of them."""


@dataclass(frozen=True, slots=True)
class TlsRules:
    """The TLS settings. ``trust_path``: the CAs of client certificates; empty: request none."""

    certificate_path: str
    key_path: str
    trust_path: str = ""
    require_client_certificate: bool = False
    protocols: tuple[str, ...] = ()
    ciphers: tuple[str, ...] = ()
    crl_path: str = ""
    """Lists of revoked certificates; empty: none."""

    @classmethod
    def of(cls, settings: Settings) -> TlsRules:
        """Raises ``ConfigError`` for missing or invalid settings."""
        for key in ("tlsCertificateFilePath", "tlsKeyFilePath"):
            if not getattr(settings, key):
                raise ConfigError(f"{key}: a port for TLS is set, so a PEM file is needed here")
        if settings.tlsRequireTrustedClientCertOnConnect and not settings.tlsTrustCertsFilePath:
            raise ConfigError(
                "tlsTrustCertsFilePath: tlsRequireTrustedClientCertOnConnect=true needs a PEM "
                "file with the CAs of clients"
            )
        if settings.tlsCrlFilePath and not settings.tlsTrustCertsFilePath:
            raise ConfigError(
                "tlsTrustCertsFilePath: tlsCrlFilePath is set, which says what these CAs revoked"
            )
        unknown = [name for name in settings.tlsCiphers if not _is_cipher(name)]
        if unknown:
            raise ConfigError(
                f"tlsCiphers: {unknown[0]} is not known; allowed are "
                f"{', '.join([*_CIPHERS, *_CIPHERS_13])}, and OpenSSL's names"
            )
        return cls(
            settings.tlsCertificateFilePath,
            settings.tlsKeyFilePath,
            settings.tlsTrustCertsFilePath,
            settings.tlsRequireTrustedClientCertOnConnect,
            settings.tlsProtocols,
            settings.tlsCiphers,
            settings.tlsCrlFilePath,
        )

    @property
    def files(self) -> list[tuple[str, str]]:
        """The files, with the settings that name them."""
        named = [
            ("tlsCertificateFilePath", self.certificate_path),
            ("tlsKeyFilePath", self.key_path),
            ("tlsTrustCertsFilePath", self.trust_path),
            ("tlsCrlFilePath", self.crl_path),
        ]
        return [(key, path) for key, path in named if path]


@dataclass(slots=True)
class ServerTls:
    """The contexts of all listeners of a process."""

    rules: TlsRules
    at_each_handshake: bool = False
    """Check the files before each handshake, not only in ``look_again``."""
    told: Callable[[str], None] = lambda paths: None
    """Called when the files were reloaded."""
    _newest: dict[Alpn, ssl.SSLContext] = field(default_factory=dict)
    _stamp: Stamps = ()
    _complaint: str = ""
    """What was logged last, of files that are still as they were then."""

    def __post_init__(self) -> None:
        """Raises ``ConfigError`` if the files cannot be used."""
        self._stamp = _stamp(self.rules)
        _new_context(self.rules, ())
        _warn_of_readable_key(self.rules.key_path)

    def context(self, *alpn: str) -> ssl.SSLContext:
        """The context for one listener, which offers the protocols ``alpn``."""
        self._newest[alpn] = _new_context(self.rules, alpn)
        listening = _new_context(self.rules, alpn)

        def hand_over(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            if self.at_each_handshake:
                self.look_again()
            connection.context = self._newest[alpn]

        tell_nobody_of_wrong_names()
        listening.sni_callback = hand_over
        return listening

    def look_again(self) -> bool:
        """Reload changed files for later handshakes; returns whether any had changed.

        If the new files cannot be used, that is logged, and the old ones stay in use. Those that
        could not be read, for want of descriptors perhaps, are tried again.
        """
        former = self._stamp
        try:
            stamp = _stamp(self.rules)
            if stamp == former:
                self._complaint = ""
                return False
            self._stamp = stamp
            made = {alpn: _new_context(self.rules, alpn) for alpn in self._newest}
        except ConfigError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError):
                self._stamp = former
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("the new TLS files cannot be used, keeping the old ones: %s", error)
            return False
        level = logging.ERROR if self._complaint else logging.INFO
        self._complaint = ""
        self._newest |= made
        paths = ", ".join(path for _, path in self.rules.files)
        log.log(level, "TLS files reloaded: %s", paths)
        self.told(paths)
        return True


def _is_cipher(name: str) -> bool:
    if name in _CIPHERS or name in _CIPHERS_13:
        return True
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(name)
    except ssl.SSLError:
        return False
    return ":" not in name


def _new_context(rules: TlsRules, alpn: Iterable[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = [_VERSIONS[name] for name in rules.protocols] or list(_VERSIONS.values())
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    suites = [_CIPHERS.get(name, name) for name in rules.ciphers if name not in _CIPHERS_13]
    if suites:
        context.set_ciphers(":".join(suites))
    if protocols := list(alpn):
        context.set_alpn_protocols(protocols)
    try:
        context.load_cert_chain(rules.certificate_path, rules.key_path, password=_no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"tlsCertificateFilePath, tlsKeyFilePath: {rules.certificate_path} and "
            f"{rules.key_path} cannot be used together: {_reason(error)}"
        ) from error
    if rules.trust_path:
        try:
            context.load_verify_locations(rules.trust_path)
        except OSError as error:
            raise ConfigError(
                f"tlsTrustCertsFilePath: {rules.trust_path} cannot be used: {_reason(error)}"
            ) from error
        required = rules.require_client_certificate
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        if rules.crl_path:
            refuse_revoked(context, rules.crl_path)
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; decrypt it with `openssl pkey -in KEY -out NEW`")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not that of the certificate"
        return "it is not in PEM format" if not error.reason else error.reason.lower()
    return getattr(error, "strerror", None) or str(error)


def _stamp(rules: TlsRules) -> Stamps:
    """The state of all files; ``ConfigError`` if one is missing."""
    found = []
    for key, path in rules.files:
        try:
            found.append(stamp_of(path))
        except OSError as error:
            raise ConfigError(f"{key}: {path}: {error.strerror}") from error
    return tuple(found)


def _warn_of_readable_key(path: str) -> None:
    if is_open_to_all(path):
        log.warning("tlsKeyFilePath: every user of this machine can use %s; chmod o= it", path)
