"""A budget for all, and a share for each."""

from __future__ import annotations

import random

from pulsark.rates.shares import SharedBudget


def test_a_greedy_owner_leaves_as_much_as_it_takes() -> None:
    budget = SharedBudget(100)
    assert budget.take("greedy", 50)
    assert not budget.take("greedy", 1)
    assert budget.take("other", 25)
    assert not budget.take("other", 1)
    assert budget.take("third", 12)
    budget.give_back("greedy", 50)
    assert budget.take("other", 6)
    assert budget.held == 43


def test_who_is_not_known_may_hold_everything_but_no_more() -> None:
    budget = SharedBudget(100)
    assert budget.take(None, 100)
    assert not budget.take(None, 1)
    budget.give_back(None, 1)
    assert budget.take(None, 1)


def test_without_a_limit_everybody_takes_what_they_like() -> None:
    budget = SharedBudget(0)
    assert budget.take("a", 1 << 60)
    assert budget.held == 1 << 60


def test_however_many_are_greedy_a_newcomer_finds_room_and_nothing_is_lost() -> None:
    chosen = random.Random(1)
    budget, held = SharedBudget(10_000), dict.fromkeys("abcdefgh", 0)
    for _ in range(5000):
        owner, amount = chosen.choice("abcdefgh"), chosen.randrange(1, 400)
        if chosen.random() < 0.3:
            amount = min(amount, held[owner])
            budget.give_back(owner, amount)
            held[owner] -= amount
        elif budget.take(owner, amount):
            held[owner] += amount
        assert budget.held == sum(held.values()) <= 10_000
        assert budget.take("newcomer", 100)
        budget.give_back("newcomer", 100)
    for owner, amount in held.items():
        budget.give_back(owner, amount)
    assert (budget.held, budget._by_owner) == (0, {})
