"""What a request changed of stored values: the parts that differ, before and after. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pulsark.security.audit.limits import AUDIT_BODY_BYTES_MAX

_PROPERTIES = "properties"
"""Texts of users, which may be secrets: of them only the names are noted."""
_HIDDEN = "..."


class AuditedChanges:
    """The changes of one request, which may change several values."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._after: list[str] = []
        self._room = 2 * AUDIT_BODY_BYTES_MAX

    def add(self, old: Any, new: Any) -> None:
        """A value was changed; ``None`` is one that is not there."""
        if self._room <= 0:
            return
        for found, part in zip((self._before, self._after), difference(old, new), strict=True):
            if part is not None:
                text = json.dumps(_shown(part), sort_keys=True, ensure_ascii=False)
                found.append(text[: AUDIT_BODY_BYTES_MAX + 1])
                self._room -= len(found[-1])

    @property
    def before(self) -> str:
        """What was there, as JSON that may be cut; empty if there was nothing."""
        return _joined(self._before)

    @property
    def after(self) -> str:
        """What is there now."""
        return _joined(self._after)


def difference(old: Any, new: Any) -> tuple[Any, Any]:
    """The parts of two values that differ. What only one of them has, only its part has."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        return old, new
    before = {key: value for key, value in old.items() if key not in new}
    after = {key: value for key, value in new.items() if key not in old}
    for key, value in old.items():
        if key in new and new[key] != value:
            before[key], after[key] = difference(value, new[key])
    return before, after


def _shown(part: Any) -> Any:
    """Hide properties, wherever they are: those of a namespace are among its policies."""
    if isinstance(part, Mapping):
        return {
            key: dict.fromkeys(value, _HIDDEN)
            if key == _PROPERTIES and isinstance(value, Mapping)
            else _shown(value)
            for key, value in part.items()
        }
    return list(map(_shown, part)) if isinstance(part, list) else part


def _joined(texts: list[str]) -> str:
    """One is itself, of several there is a list."""
    if not texts:
        return ""
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    return text if len(text) <= AUDIT_BODY_BYTES_MAX else f"{text[:AUDIT_BODY_BYTES_MAX]}..."
