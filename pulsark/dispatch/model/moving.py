"""Clients of topics that go to another broker by intent: they are told once it has the topics.

Until then they know of nothing, and what they send is dropped without an answer; they send it again
to the next owner. Receipts for what was published before still reach them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pulsark.dispatch.model.service_urls import ServiceUrls

    Tell = Callable[[ServiceUrls | None], None]


class Moving:
    """What is to be told to the clients of one move."""

    def __init__(self) -> None:
        self._later: list[Tell] | None = []

    def later(self, tell: Tell) -> None:
        """Tell a client when the time has come; at once if it has."""
        if self._later is None:
            tell(None)
        else:
            self._later.append(tell)

    def end(self, urls: ServiceUrls | None) -> None:
        """Tell all where to go; ``None``: they find that out themselves."""
        told, self._later = self._later, None
        for tell in told or ():
            tell(urls)
