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
    """The only CN of a verified certificate in DER; ``LoginError`` if there is not exactly one."""
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
        names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        raise LoginError("certificate", "the certificate cannot be read") from None
    if len(names) != 1:
        raise LoginError("certificate", f"the certificate has {len(names)} common names, not one")
    return checked_role(names[0].value)


class CertificateProvider:
    """Logs in with the client certificate of the TLS connection."""

    name = "AuthenticationProviderTls"
    method = "tls"
    scheme = ""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        """Needs no setting: TLS has verified the certificate."""

    def log_in(self, credentials: Credentials) -> Principal:
        """The principal that the certificate names."""
        if credentials.certificate is None:
            raise LoginError("certificate", "the connection has no verified client certificate")
        name = common_name(credentials.certificate)
        return Principal(name, None, "tls", None, credentials.address, name)
