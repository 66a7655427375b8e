"""``tests/security/matrix.tsv`` says what everything needs, and so does the code.

A new command, route or Flight method fails here until it has a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin_api import AdminApi
from tests.support.routes import routes_of

MATRIX = Path(__file__).parents[2] / "security" / "matrix.tsv"


def matrix(port: str) -> dict[str, str]:
    """What the file says of one port."""
    found: dict[str, str] = {}
    for line in MATRIX.read_text().splitlines():
        if line.startswith("#"):
            continue
        where, what, needs = line.split("\t")
        if where == port:
            *methods, name = what.split(" ")
            for method in methods or [""]:
                key = f"{method} {name}".strip()
                assert key not in found, f"two lines for {key}"
                found[key] = needs
    return found


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Sentences."""
    return [
        f"{key}: the matrix says {expected.get(key)}, the code says {found.get(key)}"
        for key in sorted({*expected, *found})
        if expected.get(key) != found.get(key)
    ]


@pytest.fixture
def api() -> Iterator[AdminApi]:
    found = AdminApi()
    yield found
    found.close()


def test_every_route_needs_what_the_matrix_says(api: AdminApi) -> None:
    found = {f"{route.method} {route.path}": route.operations for route in routes_of(api.app)}
    assert differences(matrix("http"), found) == []
