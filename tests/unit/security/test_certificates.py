"""Client certificates and the roles that they name."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from pulsark.config.settings import Settings
from pulsark.runtime import Runtime
from pulsark.security.certificates import CertificateProvider
from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError
from tests.support.logging_in import ec_key, kind_of

DAY = datetime.datetime(2026, 1, 1)
PROVIDER = CertificateProvider(Settings(), Runtime())


def certificate(*names: str) -> bytes:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Orders Ltd"),
            *(x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names),
        ]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(ec_key().public_key())
        .serial_number(1)
        .not_valid_before(DAY)
        .not_valid_after(DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("other")]), critical=False)
        .sign(ec_key(), hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)


def log_in(data: bytes | None) -> Principal:
    return PROVIDER.log_in(Credentials("tls", b"ignored", "10.0.0.1:9", data))


@pytest.mark.parametrize("name", ["admin", "orders, north", "\u0430dmin"])
def test_the_common_name_is_the_role(name: str) -> None:
    found = log_in(certificate(name))
    assert found == Principal(name, None, "tls", None, "10.0.0.1:9", name)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "certificate"),
        (b"no certificate", "certificate"),
        (certificate(), "certificate"),
        (certificate("admin", "other"), "certificate"),
        (certificate("a\x00b"), "role"),
        (certificate(" "), "role"),
    ],
    ids=kind_of,
)
def test_other_certificates_name_nobody(data: bytes | None, why: str) -> None:
    with pytest.raises(LoginError) as caught:
        log_in(data)
    assert caught.value.reason == why
