"""Files with the settings of ZooKeeper's own client, and its login."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.errors import ConfigError, ProtocolError
from pulsark.metadata.zookeeper import digest_login
from pulsark.metadata.zookeeper.client_config import (
    PLAIN,
    ClientConfig,
    ZooKeeperTls,
    read_client_config,
)
from pulsark.metadata.zookeeper.digest_login import DigestLogin


def read(folder: Path, text: str) -> ClientConfig:
    file = folder / "zookeeper-client.properties"
    file.write_text(text)
    return read_client_config(str(file))


def test_what_a_file_says(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("p\n")
    found = read(
        tmp_path,
        f"""\
zookeeper.client.secure=true
zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty
zookeeper.ssl.trustStore.location=/tls/ca.pem
zookeeper.ssl.keyStore.location=/tls/own
zookeeper.ssl.keyStore.type=pem
zookeeper.ssl.keyStore.passwordPath={secret}
zookeeper.ssl.hostnameVerification=false
""",
    )
    assert found.tls == ZooKeeperTls("/tls/ca.pem", "/tls/own", "p", checks_name=False)
    assert "'p'" not in repr(found)


def test_without_tls(tmp_path: Path) -> None:
    assert read_client_config("") == PLAIN
    assert read(tmp_path, "zookeeper.ssl.trustStore.location=/tls/ca.pem") == PLAIN
    assert read(tmp_path, "zookeeper.client.secure=true").tls == ZooKeeperTls()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zookeeper.ssl.keyStore.location=/tls/own.jks", "has to be in PEM"),
        ("zookeeper.ssl.trustStore.location=ca.pem\nzookeeper.ssl.trustStore.type=JKS", "in PEM"),
        ("zookeeper.kinit=/usr/bin/kinit", "does not know zookeeper.kinit"),
        ("java.security.auth.login.config=/nothing/there", "login.config"),
        ("zookeeper.ssl.keyStore.passwordPath=/nothing/there", "passwordPath"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, f"zookeeper.client.secure=true\n{text}\n")


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="metadataStoreConfigPath"):
        read_client_config(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="TLS to ZooKeeper"):
        ZooKeeperTls(str(tmp_path / "nothing")).context()


JAAS = """\
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_pulsark="x"; };
Client {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  username="pulsark"
  password="s3cret word";
};
Kerberos { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };
"""


def test_a_login(tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(JAAS)
    line = f"java.security.auth.login.config={jaas}\n"
    found = read(tmp_path, line)
    assert found == ClientConfig(None, DigestLogin("pulsark", "s3cret word"))
    assert "s3cret" not in repr(found)
    assert read(tmp_path, line + "zookeeper.sasl.client=false") == PLAIN
    for other in ("Kerberos", "Server", "Nobody"):
        with pytest.raises(ConfigError, match=f"has no {other} with"):
            read(tmp_path, f"{line}zookeeper.sasl.clientconfig={other}")


def test_the_digest_of_the_example_in_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_login, "SERVICE", "imap/elwood.innosoft.com")
    challenge = (
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,'
        b"charset=utf-8"
    )
    told, known = DigestLogin("chris", "secret").answer(challenge, "OA6MHXh6VqTrRk")
    assert b"response=d388dad90d4bbd760a152321f2143af7" in told
    assert known == b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


def test_what_is_no_challenge() -> None:
    for challenge in (b"", b"\xff", b'realm="r"', b'nonce="n",algorithm=plain'):
        with pytest.raises(ProtocolError):
            DigestLogin("a", "b").answer(challenge, "n")
