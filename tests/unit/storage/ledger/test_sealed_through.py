"""What is known of the ends of sealed ledgers is the truth, and is bounded."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsark.storage.ledger import sealed_through
from pulsark.storage.ledger.sealed_through import Entries, SealedThrough

KNOWN = 3
LEDGER = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("raised"), LEDGER, st.integers(0, 9)),
        st.tuples(st.sampled_from(["of", "forget"]), LEDGER, st.just(0)),
        st.tuples(st.just("told"), LEDGER, st.sampled_from(["", "b1", "b2"])),
    ),
    max_size=30,
)


class Table:
    """What is sealed, by ledger."""

    def __init__(self) -> None:
        self.through: dict[int, int] = {}

    async def sealed_through(self, owner: str, ledger_id: int) -> int:
        return self.through.get(ledger_id, -1)

    async def read_of(
        self, owner: str, ledger_id: int, first: int, last: int, max_bytes: int
    ) -> Entries:
        raise AssertionError("nobody reads")


@given(STEPS)
def test_it_is_as_if_the_table_were_asked_each_time(steps: list[tuple[str, int, Any]]) -> None:
    table = Table()
    known, untold = SealedThrough(table), dict[int, str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealed_through, "_KNOWN_LEDGERS", KNOWN)
        for what, ledger_id, value in steps:
            if what == "raised":
                table.through[ledger_id] = max(value, table.through.get(ledger_id, -1))
                assert known.raised(ledger_id, value) <= table.through[ledger_id]
            elif what == "told":
                known.told(ledger_id, frozenset(filter(None, [value])))
                untold[ledger_id] = value
            elif what == "forget":
                known.forget(ledger_id)
                table.through.pop(ledger_id, None)
                untold.pop(ledger_id, None)
            else:
                ledger = SimpleNamespace(ledger_id=ledger_id, config=SimpleNamespace(owner="t"))
                found = asyncio.run(known.of(cast("Any", ledger)))
                assert found == table.through.get(ledger_id, -1)
            assert len(known._through) <= KNOWN
            assert known.untold == sorted(set(filter(None, untold.values())))
