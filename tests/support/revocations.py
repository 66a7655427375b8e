"""Lists of revoked certificates (CRLs) of a test's own CA."""

from __future__ import annotations

import datetime

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key


def revocation_list(authority: trustme.CA, issued: trustme.LeafCert, days: int = 1) -> bytes:
    """A list with this certificate alone, in PEM, which is valid for so many days from now on."""
    key = load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    certificate = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    begun = until - datetime.timedelta(days=10 + abs(days))
    revoked = x509.RevokedCertificateBuilder(certificate.serial_number, begun).build()
    made = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.load_pem_x509_certificate(authority.cert_pem.bytes()).subject)
        .last_update(begun)
        .next_update(until)
        .add_revoked_certificate(revoked)
        .sign(key, SHA256())
    )
    return made.public_bytes(Encoding.PEM)
