"""Names of topics and namespaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.errors import ClientError, ServerError
from pulsark.wire.topic_name import TopicName, check_name_part, parse_namespace


@pytest.mark.feature("F24", "F25")
@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/c", "persistent://a/b/c"),
        ("persistent://a/b/c", "persistent://a/b/c"),
        ("non-persistent://a/b/c", "non-persistent://a/b/c"),
        ("persistent://property/cluster/ns/c", "persistent://property/ns/c"),
        ("persistent://a-=:._1/b/x y é ..%2e", "persistent://a-=:._1/b/x y é ..%2e"),
        ("a:b", "persistent://public/default/a:b"),
        ("topic://a/b/c", "persistent://a/b/c"),
    ],
)
def test_accepted_forms(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "a/b",
        "a/b/c/d",
        "../../etc/passwd",
        "persistent://",
        "persistent://t",
        "persistent://a/b",
        "persistent://a/b/",
        "persistent://a/b/..",
        "persistent://a/b/../../c",
        "persistent://../b/c",
        "persistent://a/./c",
        "persistent://a/b/c/d/e",
        "persistent://a//b/c",
        "persistent:// /b/c",
        "persistent://a b/c/d",
        "persistent://ä/b/c",
        "persistent://a\u202e/b/c",
        "persistent://a/b/c\0",
        "persistent://a/b/c\n",
        "persistent://a/b\n/c",
        "a/b/\u2028",
        "\ud800",
        "topic://c",
        "segment://a/b/c",
        "segment://a/b/c/0000-ffff-0",
        "PERSISTENT://a/b/c",
        "persistent:/a/b/c",
        "x" * 1025,
        "é" * 513,
        "persistent://" + "x" * 256 + "/b/c",
        "\\..\\x/b/c",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ClientError) as caught:
        TopicName.parse(text)
    assert caught.value.code == ServerError.InvalidTopicName
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("local", "base", "partition"),
    [
        ("t-partition-0", "t", 0),
        ("t-partition-17", "t", 17),
        ("t-partition-1-partition-2", "t-partition-1", 2),
        ("t-partition-01", "t-partition-01", -1),
        ("t-partition--1", "t-partition--1", -1),
        ("t-partition-x", "t-partition-x", -1),
        ("t-partition-", "t-partition-", -1),
        ("t-partition-٣", "t-partition-٣", -1),
        ("-partition-1", "-partition-1", -1),
        ("t-partition-9999999999", "t-partition-9999999999", -1),
    ],
)
def test_partitions(local: str, base: str, partition: int) -> None:
    name = TopicName.parse(local)
    assert (name.local, name.base.local, name.partition) == (local, base, partition)
    assert name.base.partition == -1 or base == "t-partition-1"


def test_parts() -> None:
    name = TopicName.parse("non-persistent://t/n/topic")
    assert (name.domain, name.tenant, name.namespace) == ("non-persistent", "t", "n")
    assert (name.namespace_name, name.is_persistent) == ("t/n", False)
    assert TopicName.parse("t").is_persistent


def test_partition_of_a_topic() -> None:
    name = TopicName.parse("a/b/c")
    third = name.with_partition(3)
    assert str(third) == "persistent://a/b/c-partition-3"
    assert third == TopicName.parse(str(third))
    assert third.base == name == name.base
    assert third.with_partition(4) == name.with_partition(4)
    with pytest.raises(ValueError, match="-1"):
        name.with_partition(-1)


def test_namespaces() -> None:
    assert parse_namespace("a/b") == ("a", "b")
    assert parse_namespace("a/cluster/b") == ("a", "b")
    for text in ("", "a", "a/", "/b", "a/b/c/d", "../b", "a/.", "a/\0"):
        with pytest.raises(ClientError):
            parse_namespace(text)


def test_parts_of_names() -> None:
    assert check_name_part("tenant", "x" * 255) == "x" * 255
    for text in ("", "x" * 256, "a/b", "..", "a\n"):
        with pytest.raises(ClientError, match="tenant"):
            check_name_part("tenant", text)


@given(st.text(alphabet="persitn:/-0123.ab\0é ", max_size=60))
def test_any_text_is_refused_or_has_one_full_form(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except ClientError:
        return
    assert TopicName.parse(str(name)) == name
    assert "/" not in name.tenant + name.namespace + name.local
