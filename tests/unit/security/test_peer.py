"""What is noted of a connection over TLS."""

from __future__ import annotations

import ssl

import trustme

from pulsark.security.peer import TlsPeer, peer_of


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The server's side of a connection that exists in memory only."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up, server_hostname="localhost")
    serving = server.wrap_bio(up, down, server_side=True)
    waiting = [asking, serving]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return serving


def contexts(authority: trustme.CA, name: str = "") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(server)
    server.verify_mode = ssl.CERT_OPTIONAL
    if name:
        authority.issue_cert("a@example.org", common_name=name).configure_cert(client)
    return client, server


def test_version_and_cipher_are_known_without_a_certificate() -> None:
    client, server = contexts(trustme.CA())
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    found = peer_of(handshake(client, server))
    assert found.version == "TLSv1.2"
    assert found.cipher.startswith("ECDHE")
    assert found == TlsPeer(found.version, found.cipher)


def test_whom_a_verified_certificate_names() -> None:
    """A comma in a name does not look like one more name."""
    client, server = contexts(trustme.CA(), "cook,CN=root")
    found = peer_of(handshake(client, server))
    assert found.version == "TLSv1.3"
    assert found.subject.startswith("CN=cook\\,CN=root,")
    assert "trustme" in found.issuer
    assert int(found.serial, 16) > 0
