"""What fails for many topics at a time, in few lines of the log."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import Final

log = logging.getLogger(__name__)

SECONDS: Final = 30.0
KINDS_MAX: Final = 20
"""More kinds of failures than these count as one, so that they are no more lines."""
_LEDGER: Final = re.compile(r"\bledger \d+")


@dataclass(slots=True)
class _Kind:
    more: int = 0
    topics: set[str] = field(default_factory=set)
    last: str = ""


class Troubles:
    """The failures of one broker's ledgers. The first of a kind is told at once, the others as a
    number, every ``SECONDS``. A kind of which there was none for so long is forgotten."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def tell(self, topic: str, problem: str) -> None:
        """Problems that differ only in the topic and in a ledger's number are of one kind."""
        name = _LEDGER.sub("ledger", problem.replace(topic, ""))
        if name not in self._kinds and len(self._kinds) >= KINDS_MAX:
            name = ""
        kind = self._kinds.get(name)
        if kind is not None:
            kind.more += 1
            kind.topics.add(topic)
            kind.last = f"{topic}: {problem}"
            return
        log.warning("%s: %s", topic, problem)
        self._kinds[name] = _Kind()
        if len(self._kinds) == 1:
            self._tell_later()

    def _tell_later(self) -> None:
        asyncio.get_running_loop().call_later(SECONDS, self._tell_numbers)

    def _tell_numbers(self) -> None:
        found, self._kinds = self._kinds, {}
        for name, kind in found.items():
            if not kind.more:
                continue
            log.warning(
                "%d more failures of that kind, of %d topics, within %g s; the last one: %s",
                kind.more, len(kind.topics), SECONDS, kind.last,
            )  # fmt: skip
            self._kinds[name] = _Kind()
        if self._kinds:
            self._tell_later()
