"""The changes of one request, collected for the events about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsark.security.audit.limits import AUDIT_EFFECTS_MAX
from pulsark.security.decisions import Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pulsark.security.effects import Changed, Effect

CHANGED = "changed"
"""The parameter of an event that says what happened."""


class AuditedEffects:
    """Distinct changes by what they were about. More targets than a bound are only counted."""

    def __init__(self) -> None:
        self._of_target: dict[Target, dict[Changed, None]] = {}
        self._left_out: set[Changed] = set()
        self._ended = False

    def __bool__(self) -> bool:
        return bool(self._of_target)

    def add(self, effect: Effect) -> None:
        """Take note of a change, unless the request has ended."""
        if self._ended:
            return
        target = Target.of_topic(effect.topic, effect.subscription)
        if target not in self._of_target and len(self._of_target) >= AUDIT_EFFECTS_MAX:
            self._left_out.add(effect.what)
            return
        self._of_target.setdefault(target, {})[effect.what] = None

    @property
    def summary(self) -> str:
        """All of it in words, without what was changed; empty if nothing was."""
        changed = {what for each in self._of_target.values() for what in each}
        return _in_words(changed | self._left_out)

    def end(self) -> None:
        """Take no note of what tasks that the request has started do from now on."""
        self._ended = True

    def each(self) -> Iterator[tuple[Target, str]]:
        """What was changed, and how, in words; last, what had no room, without a target."""
        for target, changed in self._of_target.items():
            yield target, _in_words(changed)
        if self._left_out:
            yield Target(), f"{_in_words(self._left_out)}, of more topics"


def _in_words(changed: Iterable[Changed]) -> str:
    return ", ".join(sorted(what.value for what in changed))
