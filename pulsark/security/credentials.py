"""The credentials in a CONNECT command. Pure."""

from __future__ import annotations

from pulsark.security.provider import Credentials
from pulsark.wire import pulsar_pb2 as pb

_PREFIX_LENGTH = len("AuthMethod")


def of_connect(
    connect: pb.CommandConnect, address: str, certificate: bytes | None = None
) -> Credentials:
    """The credentials of a CONNECT. Old clients give their method as a number, others as a name."""
    if connect.HasField("auth_method_name"):
        method = connect.auth_method_name
    elif connect.HasField("auth_method"):
        method = pb.AuthMethod.Name(connect.auth_method)[_PREFIX_LENGTH:].lower()
    else:
        method = "none"
    return Credentials(method, connect.auth_data, address, certificate)
