"""All states of a ledger that a few faults can lead to; and that broken rules are noticed there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.ledger_model import BrokenError, Rules, explore

OWNERS = Rules(entries=1, fails=1, losses=0, repairs=0)
"""A writer and a new owner, a bookie that fails, a write that is not answered."""
REPAIRED = Rules(entries=1, fails=0, repairs=1, unheard=0, new_owner=False, auto_recovery=False)
"""A writer that loses a bookie, and a repair of what it wrote before."""
AUTO = replace(REPAIRED, auto_recovery=True, repairs=0, owner_recovers=False)
"""Auto-recovery closes the ledger under its writer."""
ALL = Rules()

BROKEN = {
    "conflict_is_written_over": AUTO,
    "unknown_is_failed": replace(OWNERS, entries=2, fails=0, new_owner=False),
    "replacement_lacks_confirmed": OWNERS,
    "earlier_from_memory": REPAIRED,
    "replacement_counts_at_once": OWNERS,
    "recovery_stores_replacements": replace(OWNERS, unheard=0),
    "no_guard": OWNERS,
}


@pytest.mark.feature("F70", "F73")
@pytest.mark.parametrize("rules", [OWNERS, REPAIRED, AUTO], ids=["owners", "repaired", "auto"])
def test_what_a_ledger_promises_holds_in_every_state(rules: Rules) -> None:
    assert explore(rules) > 100


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(rule: str) -> None:
    with pytest.raises(BrokenError):
        explore(replace(BROKEN[rule], **{rule: True}))


@pytest.mark.chaos
@pytest.mark.timeout(1800)  # a minute of a processor, of which it gets the least
@pytest.mark.feature("F70", "F73")
@pytest.mark.parametrize(
    "rules",
    [
        ALL,
        replace(ALL, fails=0, losses=1, repairs=2),
        replace(ALL, losses=0),
        replace(ALL, unheard=0),
    ],
)
def test_what_a_ledger_promises_holds_in_a_million_states(rules: Rules) -> None:
    assert explore(rules, limit=1_000_000) > 100_000
