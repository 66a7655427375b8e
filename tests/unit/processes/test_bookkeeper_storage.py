"""A broker that starts says so if there are fewer bookies than its ledgers want."""

from __future__ import annotations

import pytest

from pulsark.config.settings import Settings
from pulsark.processes.bookkeeper_storage import too_few

SETTINGS = Settings(
    managedLedgerDefaultEnsembleSize=4,
    managedLedgerDefaultWriteQuorum=3,
    managedLedgerDefaultAckQuorum=2,
)


@pytest.mark.parametrize(
    ("writable", "words"),
    [
        (5, ""),
        (4, ""),
        (
            3,
            "managedLedgerDefaultEnsembleSize=4, and 3 bookies take entries now: new ledgers have "
            "fewer copies. Start more bookies, or lower managedLedgerDefaultEnsembleSize",
        ),
        (
            1,
            "managedLedgerDefaultAckQuorum=2, and 1 bookie takes entries now: nothing can be "
            "published. Start more bookies, or lower managedLedgerDefaultAckQuorum",
        ),
    ],
)
def test_the_setting_the_number_and_the_cure_are_named(writable: int, words: str) -> None:
    assert too_few(SETTINGS, writable) == words
