"""``pulsark doctor security``: what the settings leave open, and how to close it."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from pulsark.cli.doctor.finding import FAILURE, OK, WARNING, Finding, print_findings
from pulsark.config.addresses import is_private
from pulsark.config.sources import load_settings, parse_properties
from pulsark.errors import ConfigError
from pulsark.security.keys import is_open_to_all, path_of
from pulsark.security.revoked_certificates import lists_in
from pulsark.security.tls import ServerTls, TlsRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pulsark.config.settings import Settings

DAYS_BEFORE_THE_END = 30
_PORTS = (
    ("brokerServicePort", "brokerServicePortTls", 6651),
    ("webServicePort", "webServicePortTls", 8443),
    ("flightServicePort", "flightServicePortTls", 8816),
)
_SECRET_FILES = (
    "tlsKeyFilePath",
    "tokenSecretKey",
    "basicAuthConf",
    "objectStoreCredentialsFile",
)
_SECRETS_OF_STORES = (
    "java.security.auth.login.config",
    "zookeeper.ssl.keyStore.location",
    "zookeeper.ssl.keyStore.passwordPath",
    "tlsKeyFilePath",
)
"""Files with secrets that the file of ``metadataStoreConfigPath`` names."""


def run_security_doctor(conf: str | None, environment: Mapping[str, str], *, as_json: bool) -> bool:
    """Print all findings; whether none is a failure."""
    settings = load_settings(file=conf, environment=environment).settings
    conclusion = ("Nothing is wide open.", "Something is open that should not be")
    now = datetime.datetime.now(datetime.UTC)
    return print_findings(examine(settings, now), conclusion, as_json)


def examine(settings: Settings, now: datetime.datetime) -> Iterator[Finding]:
    """All checks, one after the other; none of them raises."""
    yield access(settings)
    yield authorization(settings)
    yield roles(settings)
    yield encryption(settings)
    yield certificate(settings, now)
    yield revoked(settings, now)
    yield files(settings)


def access(settings: Settings) -> Finding:
    """Who reaches the ports, and must log in or not."""
    where = settings.bindAddress
    if settings.authenticationEnabled:
        ways = ", ".join(settings.authenticationProviders)
        return Finding("access", OK, f"clients at {where} log in by {ways}")
    if is_private(where):
        return Finding(
            "access",
            WARNING,
            "every user of this machine may do everything without a login",
            "set authenticationEnabled=true and authenticationProviders=token",
        )
    return Finding(
        "access",
        FAILURE,
        f"everyone who reaches {where} may do everything without a login",
        "set bindAddress=localhost, or authenticationEnabled=true and authenticationProviders",
    )


def authorization(settings: Settings) -> Finding:
    """Whether clients that are let in may do everything."""
    if settings.authorizationEnabled:
        return Finding("rights", OK, "roles do what they were granted")
    if not settings.authenticationEnabled:
        return Finding("rights", OK, "without a login there are no roles to grant to")
    return Finding(
        "rights",
        FAILURE,
        "every client that logs in may do everything, of every tenant",
        "set authorizationEnabled=true and superUserRoles=ROLE",
    )


def roles(settings: Settings) -> Finding:
    """Roles that come to too many."""
    anonymous, super_users = settings.anonymousUserRole, settings.superUserRoles
    if anonymous and anonymous in super_users:
        return Finding(
            "roles",
            FAILURE,
            f"clients without a login have the role {anonymous}, which may do everything",
            "take it out of superUserRoles, or set anonymousUserRole= (empty)",
        )
    if "*" in super_users or "*" in settings.proxyRoles:
        return Finding(
            "roles",
            WARNING,
            "* in superUserRoles or proxyRoles is the name of one role, and no pattern",
            "name the roles",
        )
    if settings.authorizationEnabled and not super_users:
        return Finding("roles", WARNING, "no role may create tenants", "set superUserRoles=ROLE")
    if anonymous:
        return Finding(
            "roles",
            WARNING,
            f"clients without a login have the role {anonymous}, and what is granted to it",
            "set anonymousUserRole= (empty) if every client can log in",
        )
    return Finding("roles", OK, f"{len(super_users)} may do everything")


def encryption(settings: Settings) -> Finding:
    """Ports that carry messages and tokens in the clear to other machines."""
    if is_private(settings.bindAddress):
        return Finding("encryption", OK, "other machines reach no port")
    plain = [
        (key, over_tls, number)
        for key, over_tls, number in _PORTS
        if getattr(settings, key) is not None
    ]
    if not plain:
        return Finding("encryption", OK, "all ports are over TLS")
    names = ", ".join(key for key, _, _ in plain)
    cure = " ".join(f"{key}= {over_tls}={number}" for key, over_tls, number in plain)
    return Finding(
        "encryption",
        WARNING,
        f"messages and logins cross the network in the clear at {names}",
        f"set {cure}",
    )


def certificate(settings: Settings, now: datetime.datetime) -> Finding:
    """Whether the certificate can be used, for how long, and under which name."""
    if all(getattr(settings, over_tls) is None for _, over_tls, _ in _PORTS):
        return Finding("certificate", OK, "no port is over TLS")
    try:
        ServerTls(TlsRules.of(settings))
    except ConfigError as error:
        return Finding("certificate", FAILURE, str(error), "mend the files, or the settings")
    from cryptography import x509

    with open(settings.tlsCertificateFilePath, "rb") as file:
        found = x509.load_pem_x509_certificate(file.read())
    days = (found.not_valid_after_utc - now).days
    renew = f"renew {settings.tlsCertificateFilePath}; a running broker reads it by itself"
    if days < 0 or found.not_valid_before_utc > now:
        until = f"{found.not_valid_before_utc:%Y-%m-%d} to {found.not_valid_after_utc:%Y-%m-%d}"
        return Finding("certificate", FAILURE, f"it is valid from {until}", renew)
    names = _names(found)
    if not covers(names, settings.advertisedAddress):
        return Finding(
            "certificate",
            FAILURE,
            f"clients are told to connect to {settings.advertisedAddress}, and the certificate is "
            f"for {', '.join(names) or 'no name'}",
            "set advertisedAddress to a name of the certificate, or renew it for that name",
        )
    status = OK if days >= DAYS_BEFORE_THE_END else WARNING
    return Finding(
        "certificate", status, f"valid for {days} more days", "" if status == OK else renew
    )


def revoked(settings: Settings, now: datetime.datetime) -> Finding:
    """Whether the lists of revoked certificates are valid: else no certificate is taken."""
    if not settings.tlsCrlFilePath:
        return Finding("revoked certificates", OK, "none are asked for")
    try:
        with open(settings.tlsCrlFilePath, "rb") as file:
            ends = [each.next_update_utc for each in lists_in(file.read())]
    except (OSError, ValueError) as error:
        reason = f"{settings.tlsCrlFilePath} cannot be read: {error}"
        return Finding("revoked certificates", FAILURE, reason, "mend tlsCrlFilePath")
    renew = f"renew {settings.tlsCrlFilePath}; a running broker reads it by itself"
    days = min(((end - now).days for end in ends if end is not None), default=None)
    if days is None:
        return Finding("revoked certificates", OK, "the lists have no end")
    if days < 0:
        return Finding(
            "revoked certificates",
            FAILURE,
            "a list is not valid any more, so clients with a certificate of its CA are refused",
            renew,
        )
    return Finding("revoked certificates", OK, f"the lists are valid for {days} more days")


def files(settings: Settings) -> Finding:
    """Secrets that other users of this machine can read."""
    named = ((key, getattr(settings, key)) for key in _SECRET_FILES)
    paths = [path for _, value in named if value for path in map(path_of, value.split(",")) if path]
    paths += _secrets_of_store(settings.metadataStoreConfigPath)
    open_to_all = [path for path in paths if is_open_to_all(path)]
    if open_to_all:
        return Finding(
            "files",
            FAILURE,
            f"every user of this machine can read {', '.join(open_to_all)}",
            f"chmod o= {' '.join(open_to_all)}",
        )
    return Finding("files", OK, f"{len(paths)} files with secrets, of their owner and group only")


def _secrets_of_store(path: str) -> list[str]:
    """How brokers log in to ZooKeeper or etcd. A broker says what is wrong with the file itself."""
    if not path:
        return []
    try:
        with open(path, encoding="utf-8") as file:
            found = parse_properties(file.read())  # which splits lines of YAML, too
    except (OSError, ValueError):
        return []
    named = [found[key].strip("'\"") for key in _SECRETS_OF_STORES if found.get(key)]
    return [path, *named] if any(key.endswith("password") for key in found) else named


def covers(names: Sequence[str], host: str) -> bool:
    """Whether clients take a certificate for these names as that of a host. ``*`` is one label."""
    _, dot, domain = host.lower().partition(".")
    return bool({host.lower(), f"*{dot}{domain}" if dot else ""} & {each.lower() for each in names})


def _names(certificate: object) -> list[str]:
    from cryptography import x509

    assert isinstance(certificate, x509.Certificate)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    names = found.get_values_for_type(x509.DNSName)
    return [*names, *map(str, found.get_values_for_type(x509.IPAddress))]
