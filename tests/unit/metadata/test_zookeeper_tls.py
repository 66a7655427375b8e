"""Files with the settings of ZooKeeper's own client."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsark.errors import ConfigError
from pulsark.metadata.zookeeper.tls import ZooKeeperTls, read_tls


def read(folder: Path, text: str) -> ZooKeeperTls | None:
    file = folder / "zookeeper-client.properties"
    file.write_text(text)
    return read_tls(str(file))


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
    assert found == ZooKeeperTls("/tls/ca.pem", "/tls/own", "p", checks_name=False)
    assert "'p'" not in repr(found)


def test_without_tls(tmp_path: Path) -> None:
    assert read_tls("") is None
    assert read(tmp_path, "zookeeper.ssl.trustStore.location=/tls/ca.pem") is None
    assert read(tmp_path, "zookeeper.client.secure=true") == ZooKeeperTls()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zookeeper.ssl.keyStore.location=/tls/own.jks", "has to be in PEM"),
        ("zookeeper.ssl.trustStore.location=ca.pem\nzookeeper.ssl.trustStore.type=JKS", "in PEM"),
        ("zookeeper.sasl.client=true", "does not know zookeeper.sasl.client"),
        ("zookeeper.ssl.keyStore.passwordPath=/nothing/there", "passwordPath"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, f"zookeeper.client.secure=true\n{text}\n")


def test_files_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="metadataStoreConfigPath"):
        read_tls(str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="TLS to ZooKeeper"):
        ZooKeeperTls(str(tmp_path / "nothing")).context()
