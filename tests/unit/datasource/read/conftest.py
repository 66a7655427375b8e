"""Streams that tests leave as they are renew their claims no longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pulsark.datasource.read import following


@pytest.fixture(autouse=True)
def claims_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Else their threads call what later tests have put in the place of HTTP."""
    made: list[following.Claim] = []

    class Noted(following.Claim):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(following, "Claim", Noted)
    yield
    for claim in made:
        claim.end()
