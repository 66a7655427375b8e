"""Budgets that all clients use up together, with a fair share for each. Pure.

A limit for each client does not bound a thousand of them, and one limit for all lets a single
client take everything. Here each may hold at most as much as it leaves free: one greedy client gets
half of the budget, two get a third each, and a client that holds little always finds room.
"""

from __future__ import annotations

import math


class SharedBudget:
    """Amounts that are held, by owner. A ``limit`` of 0 or less is none."""

    def __init__(self, limit: int) -> None:
        self.held = 0
        """What all owners hold together."""
        self._limit = limit if limit > 0 else math.inf
        self._by_owner: dict[str, int] = {}

    def take(self, owner: str | None, amount: int) -> bool:
        """Hold more, or return False if the owner has its share.

        None is the owner where clients do not log in: it may hold everything.
        """
        held = self.held + amount
        if held > self._limit:
            return False
        if owner is not None:
            own = self._by_owner.get(owner, 0) + amount
            if own > self._limit - held:
                return False
            self._by_owner[owner] = own
        self.held = held
        return True

    def give_back(self, owner: str | None, amount: int) -> None:
        """Hold less."""
        self.held -= amount
        if owner is None:
            return
        own = self._by_owner.get(owner, 0) - amount
        if own > 0:
            self._by_owner[owner] = own
        else:
            self._by_owner.pop(owner, None)


def even_share(total: int, among: int, least: int, most: int) -> int:
    """Return the part of a budget that each of so many may take, within bounds of its own."""
    return max(least, min(total // max(1, among), most))
