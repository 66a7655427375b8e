"""URLs of ZooKeeper."""

from __future__ import annotations

import pytest

from pulsark.errors import ConfigError
from pulsark.metadata.zookeeper.address import ZooKeeperAddress, is_zookeeper, parse_zookeeper


@pytest.mark.parametrize(
    ("url", "hosts", "root"),
    [
        ("zk:one", "one:2181", ""),
        ("zk:one:2182,two:2183/a/b", "one:2182,two:2183", "/a/b"),
        ("zk://one:2182;two/ledgers/", "one:2182,two:2181", "/ledgers"),
        ("zk+hierarchical://[::1]:2181/", "[::1]:2181", ""),
    ],
)
def test_a_url_names_servers_and_a_root(url: str, hosts: str, root: str) -> None:
    assert is_zookeeper(url)
    assert parse_zookeeper(url) == ZooKeeperAddress(hosts, root)


@pytest.mark.parametrize("url", ["zk", "zk:", "zk:/a", "zk:a,,b", "zk:a:b", "zk:a//b", "zk:a/../b"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="zk"):
        parse_zookeeper(url)


def test_other_stores_are_none() -> None:
    assert not any(is_zookeeper(url) for url in ("", "rocksdb:///a", "etcd:http://a", "/zk:a"))
