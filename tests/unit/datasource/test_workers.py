"""Workers that Spark uses again collect only what their tasks left."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from pulsark.datasource.plan.workers import settle


class Node:
    """May refer to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_is_there_is_not_looked_at_any_more() -> None:
    kept = Node()
    settle()
    assert all(kept is not each for each in gc.get_objects())


def test_what_later_tasks_leave_is_collected() -> None:
    settle()
    later = Node()
    settle()
    left = weakref.ref(later)
    del later
    gc.collect()
    assert left() is None
