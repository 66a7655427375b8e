"""What a client of the binary protocol shows when it connects. Pure."""

from __future__ import annotations

from pulsark.security.provider import Credentials
from pulsark.wire import pulsar_pb2 as pb

_PREFIX_LENGTH = len("AuthMethod")


def of_connect(
    connect: pb.CommandConnect, address: str, certificate: bytes | None = None
) -> Credentials:
    """Credentials of CONNECT: old clients say their method by a number, others by its name."""
    if connect.HasField("auth_method_name"):
        method = connect.auth_method_name
    elif connect.HasField("auth_method"):
        method = pb.AuthMethod.Name(connect.auth_method)[_PREFIX_LENGTH:].lower()
    else:
        method = "none"
    return Credentials(method, connect.auth_data, address, certificate)
