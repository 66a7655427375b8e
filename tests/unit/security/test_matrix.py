"""``tests/security/matrix.tsv`` says what everything needs, and so does the code.

A new command, route or Flight method fails here until it has a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsark.dispatch.connection.handlers import HANDLERS
from pulsark.dispatch.connection.needs import NEEDS, Own
from pulsark.wire import pulsar_pb2 as pb
from tests.support.admin_api import AdminApi
from tests.support.routes import in_words, routes_of
from tests.support.samples import sample_of

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


def test_every_command_needs_what_the_matrix_says() -> None:
    name = pb.BaseCommand.Type.Name
    found = {name(kind): needs_of(kind) for kind in NEEDS}
    # The one is the login, and the other is looked up among the producers of its connection.
    found |= {"CONNECT": "none", "SEND": "own producer"}
    assert differences(matrix("binary"), found) == []


def test_every_command_that_is_carried_out_needs_something() -> None:
    assert HANDLERS.keys() - NEEDS.keys() == set()


def needs_of(kind: int) -> str:
    """In the words of the matrix."""
    needs = NEEDS[kind]
    if isinstance(needs, Own):
        return needs.value
    return in_words(needs.asked(sample_of(kind)))


def test_every_route_needs_what_the_matrix_says(api: AdminApi) -> None:
    found = {f"{route.method} {route.path}": route.operations for route in routes_of(api.app)}
    assert differences(matrix("http"), found) == []
