"""Values of settings as they are shown have no secrets."""

from __future__ import annotations

import pytest

from pulsark.config.keys import NOT_SHOWN, key_index


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tokenSecretKey", "data:;base64,abc", NOT_SHOWN),
        ("tokenSecretKey", "abc", NOT_SHOWN),
        ("tokenSecretKey", "file:///a,data:;base64,abc", NOT_SHOWN),
        ("tokenSecretKey", "file:///a,/b", "file:///a,/b"),
        ("basicAuthConf", "data:,user:hash", NOT_SHOWN),
        ("metadataStoreUrl", "etcd:http://u:pw@host:1/p", "etcd:http://u:***@host:1/p"),
        ("objectStoreEndpoint", "https://h/?secret=x&a=b", "https://h/?secret=***&a=b"),
        ("tableRoots", ("s3://b/p", "s3://u:pw@b"), "s3://b/p,s3://u:***@b"),
        ("metadataStoreUrl", "zk:a:2181,b:2181/x", "zk:a:2181,b:2181/x"),
    ],
)
def test_secrets_are_left_out(name: str, value: object, shown: str) -> None:
    assert key_index()[name].shown_text(value) == shown
