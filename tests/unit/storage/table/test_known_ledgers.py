"""Sealed ledgers that are remembered, and forgotten by table."""

from __future__ import annotations

from typing import Any, cast

from pulsark.storage.table.known_ledgers import KnownLedgers


class Sealed:
    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id


def known(most: int = 100) -> KnownLedgers:
    found = KnownLedgers(most)
    for table in ("/tables/a", "/tables/b"):
        for ledger_id in (1, 2, 3):
            found.add(table, cast(Any, Sealed(ledger_id)))
    return found


def there(found: KnownLedgers, table: str) -> list[int]:
    return [ledger_id for ledger_id in range(10) if found.get(table, ledger_id) is not None]


def test_a_table_is_forgotten_alone_in_parts_and_whole() -> None:
    found = known()
    found.forget("/tables/a", [2, 7])
    assert there(found, "/tables/a") == [1, 3]
    found.forget("/tables/a")
    found.forget("/tables/a")
    assert there(found, "/tables/a") == []
    assert there(found, "/tables/b") == [1, 2, 3]
    assert found.forgotten == 3
    found.clear()
    assert there(found, "/tables/b") == []
    assert found._of_table == {}


def test_those_that_were_used_last_stay() -> None:
    found = known(most=6)
    assert found.get("/tables/a", 1) is not None
    for ledger_id in (4, 5):
        found.add("/tables/b", cast(Any, Sealed(ledger_id)))
    assert there(found, "/tables/a") == [1]
    assert there(found, "/tables/b") == [1, 2, 3, 4, 5]
    found.forget("/tables/a")
    found.forget("/tables/b")
    assert found._known == found._of_table == {}


def test_a_table_is_forgotten_without_a_look_at_all_others() -> None:
    found = known()

    class Counted(dict[Any, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("all ledgers are gone through")

    found._known = cast(Any, Counted(found._known))
    found.forget("/tables/a")
    assert len(found._known) == 3
