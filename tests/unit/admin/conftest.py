"""A fresh broker in memory for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.admin_api import AdminApi


@pytest.fixture
def api() -> Iterator[AdminApi]:
    found = AdminApi()
    yield found
    found.close()
