"""URLs of etcd, and the file that says how to log in."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from pulsark.errors import ConfigError
from pulsark.metadata.etcd.access import EtcdAccess, read_access
from pulsark.metadata.etcd.address import EtcdAddress, Server, parse_etcd


@pytest.mark.parametrize(
    ("url", "servers", "root"),
    [
        ("etcd:http://one:2379", (Server("one"),), ""),
        ("etcd:http://one:2379,http://two:2380", (Server("one"), Server("two", 2380)), ""),
        ("etcd:http://one:1,two/a/b", (Server("one", 1), Server("two")), "/a/b"),
        ("etcd:https://a:1,b:2/c/", (Server("a", 1, tls=True), Server("b", 2, tls=True)), "/c"),
        ("etcd:https://a,http://b", (Server("a", tls=True), Server("b")), ""),
        ("etcd:one", (Server("one"),), ""),
        ("etcd:http://[::1]:2379/", (Server("::1"),), ""),
    ],
)
def test_a_url_names_servers_and_a_root(url: str, servers: tuple[Server, ...], root: str) -> None:
    address = parse_etcd(url)
    assert address == EtcdAddress(servers, root)
    assert parse_etcd(str(address)) == address


@pytest.mark.parametrize(
    "url",
    ["etcd", "etcd:", "etcd:/a", "etcd:http://", "etcd:a,,b", "etcd:ftp://a", "etcd:http://a//b",
     "etcd:http://a/../b", "etcd:http://a:b", "zk:a", "etcd:http://u@a"],
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="etcd"):
        parse_etcd(url)


def test_a_file_says_how_to_log_in_with_the_keys_of_pulsar(tmp_path: Path) -> None:
    authority = trustme.CA()
    names = {"ca": "ca.pem", "key": "key.pem", "certificate": "certificate.pem"}
    paths = {name: str(tmp_path / file) for name, file in names.items()}
    authority.cert_pem.write_to_path(paths["ca"])
    issued = authority.issue_cert("broker")
    issued.private_key_pem.write_to_path(paths["key"])
    issued.cert_chain_pems[0].write_to_path(paths["certificate"])
    file = tmp_path / "etcd.yaml"
    file.write_text(
        f"useTls: true\ntlsProvider: JDK\ntlsTrustCertsFilePath: {paths['ca']}\n"
        f"tlsKeyFilePath: {paths['key']}\ntlsCertificateFilePath: {paths['certificate']}\n"
        "authority: etcd\nuser: pulsark\npassword: secret\n"
    )
    found = read_access(str(file))
    assert found.tls is not None
    assert found.tls.verify_mode is ssl.CERT_REQUIRED
    assert found.tls.check_hostname
    assert (found.server_name, found.user, found.password) == ("etcd", "pulsark", "secret")
    assert "secret" not in repr(found)
    assert read_access("") == EtcdAccess()
    file.write_text("")
    assert read_access(str(file)) == EtcdAccess()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("useTLS: true", "useTLS is no key"),
        ("password: 1", "must be texts"),
        ("- a", "no keys"),
        ("a: b: c", "cannot be read"),
        ("useTls: true\ntlsTrustCertsFilePath: /none", "TLS in"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "etcd.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"metadataStoreConfigPath: .*{problem}"):
        read_access(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_access(str(tmp_path / "none"))
