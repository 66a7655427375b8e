"""The options of a command: each is taken once, and none is left over."""

from __future__ import annotations

import re

from tests.scripts.script import Line, ScriptError

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


class Options:
    """Those that nobody takes are not in the language."""

    def __init__(self, line: Line) -> None:
        self._left = dict(line.options)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def text(self, name: str, default: str = "") -> str:
        return self._left.pop(name, default)

    def number(self, name: str, default: int = 0) -> int:
        return int(self._left.pop(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        return self._left.pop(name, "yes" if default else "no") == "yes"

    def numbers(self, **fields: str) -> dict[str, int]:
        """Fields of the protocol by the options that set them, where these are given."""
        return {f: int(self._left.pop(o)) for f, o in fields.items() if o in self._left}

    def check_empty(self) -> None:
        if self._left:
            raise ScriptError(f"No such option: {', '.join(self._left)}")


def seconds(text: str) -> float:
    """``20ms``, ``3s``, ``5m``, ``2h``."""
    found = re.fullmatch(r"(\d+)(ms|s|m|h)", text)
    if found is None:
        raise ScriptError(f"No such time: {text}")
    return int(found[1]) * _SECONDS[found[2]]
