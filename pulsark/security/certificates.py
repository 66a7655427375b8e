"""Client certificates: the role is the common name (CN) of the subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import NameOID

from pulsark.security.principal import Principal
from pulsark.security.provider import Credentials, LoginError, checked_role

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime


def common_name(certificate: bytes) -> str:
    """The one CN of a certificate in DER, which must have been verified. ``LoginError`` if none."""
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
        names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        raise LoginError("certificate", "the certificate cannot be read") from None
    if len(names) != 1:
        raise LoginError("certificate", f"the certificate has {len(names)} common names, not one")
    return checked_role(names[0].value)


class CertificateProvider:
    """Logs in with the certificate that the TLS connection was made with."""

    name = "AuthenticationProviderTls"
    method = "tls"
    scheme = ""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        """No setting is needed: which certificates are trusted, TLS decides."""

    def log_in(self, credentials: Credentials) -> Principal:
        """Whom the certificate names."""
        if credentials.certificate is None:
            raise LoginError("certificate", "the connection has no verified client certificate")
        name = common_name(credentials.certificate)
        return Principal(name, None, "tls", None, credentials.address, name)
