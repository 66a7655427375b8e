"""Paths of the metadata store: as documented, spelled once, and there and back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.metadata import paths
from pulsark.wire.topic_name import TopicName
from tests.unit.test_layering import is_within, modules

ROOT = Path(__file__).parents[3]
SPEAK_HTTP = ("admin", "admin_client", "cli.admin", "datasource")
"""Rooms whose paths are those of URLs."""
TREES = {
    value
    for name, value in vars(paths).items()
    if name.isupper() and isinstance(value, str) and value.startswith("/")
}


def test_the_documented_paths_are_those_of_the_program() -> None:
    document = (ROOT / "docs/formats/metadata.md").read_text()
    listed = set(re.findall(r"^\| `(/[^<`]*?)(?:/<[^`]*)?`", document, re.MULTILINE))
    counters = {tree for tree in TREES if tree.startswith("/counters/")}
    assert listed == TREES - counters | {"/counters"}
    assert all(f"`{counter}`" in document for counter in counters)


def test_a_path_is_spelled_in_one_module() -> None:
    spelled = re.compile("|".join(f"{re.escape(tree)}(/|$)" for tree in (*TREES, "/counters")))
    assert [
        f"{module}: {text}"
        for module, path in modules().items()
        if module != "metadata.paths" and not is_within(module, SPEAK_HTTP)
        for text in beginnings(ast.parse(path.read_text()))
        if spelled.match(text)
    ] == []


def beginnings(tree: ast.AST) -> Iterator[str]:
    """How the strings of a module begin; a constant inside an f-string begins none."""
    inside = {part for f in ast.walk(tree) if isinstance(f, ast.JoinedStr) for part in f.values[1:]}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


@pytest.mark.parametrize("name", ["persistent://t/n/plain", "non-persistent://t/n/a%2Fb c%"])
@pytest.mark.parametrize("tree", [paths.MANAGED_LEDGERS, paths.TOPIC_POLICIES])
def test_the_topic_of_a_path_is_found_again(tree: str, name: str) -> None:
    path = paths.topic_path(tree, TopicName.parse(name))
    assert path.count("/") == tree.count("/") + 4, "a slash in the name makes no level"
    assert paths.topic_at(tree, path) == name


@pytest.mark.parametrize("path", ["/tables/t/n/persistent/x/7", "/tables/t/n", "/a/tables/t/n/d/x"])
def test_a_path_that_is_no_topics_has_none(path: str) -> None:
    with pytest.raises(ValueError):
        paths.topic_at(paths.TABLES, path)


def test_partitions_share_a_table_and_schemas() -> None:
    name = TopicName.parse("persistent://t/n/x-partition-3")
    assert paths.table_path(name) == "/tables/t/n/persistent/x"
    assert paths.schemas_path(name) == "/schemas/t/n/x"
    assert paths.managed_ledger_path(name) == "/managed-ledgers/t/n/persistent/x-partition-3"


def test_the_root_of_a_path_is_found_again() -> None:
    path = paths.storage_root_path("s3://bucket/a b")
    assert paths.storage_root_at(path.rpartition("/")[2]) == "s3://bucket/a b"
