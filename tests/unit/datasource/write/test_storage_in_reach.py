"""A task that cannot reach the storage roots says what it lacks, before it writes anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.datasource.options.errors import DataSourceError
from pulsark.datasource.write.topic_writers import _check_reachable
from pulsark.storage.roots.task_files import task_files


@pytest.fixture(autouse=True)
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody listens where the object store should be."""
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "an-access-key"),
        ("AWS_SECRET_ACCESS_KEY", "a-secret-of-tests"),
        ("PULSARK_objectStoreEndpoint", "http://127.0.0.1:1"),
        ("PULSARK_objectStoreRetrySeconds", "0"),
        ("PULSARK_objectStoreTimeoutSeconds", "1"),
    ):
        monkeypatch.setenv(name, value)
    task_files.cache_clear()
    yield
    task_files.cache_clear()


def test_of_an_object_store_it_names_the_variables() -> None:
    with pytest.raises(DataSourceError, match="PULSARK_objectStoreEndpoint") as error:
        _check_reachable("orders", ("s3://bucket/tables/_staged",), 1)
    assert "a-secret-of-tests" not in str(error.value)
    assert "at-least-once" in str(error.value)


def test_of_a_directory_it_names_the_directory(tmp_path: Path) -> None:
    with pytest.raises(DataSourceError, match="there is no directory /nowhere/_staged"):
        _check_reachable("orders", ("/nowhere/_staged",), 1)
    _check_reachable("orders", (str(tmp_path), "/nowhere/_staged"), 1)


def test_enough_of_the_roots_are_enough(tmp_path: Path) -> None:
    _check_reachable("orders", (str(tmp_path), "s3://bucket/tables/_staged"), 1)
