"""The values of options: numbers, sizes, times. Every error names the option and a right value."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pulsark.datasource.options.errors import OptionError
from pulsark.datasource.options.offsets import Moment

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|h|d)", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def names(name: str, value: str) -> tuple[str, ...]:
    parts = [part.strip() for part in value.split(",")]
    if not all(parts):
        raise OptionError(f"option '{name}': '{value}' has an empty name in it")
    return tuple(dict.fromkeys(parts))


def positive(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,12}", value.strip()) or int(value) < 1:
        raise OptionError(f"option '{name}': '{value}' is not a whole number from 1 up")
    return int(value)


def counted(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,12}", value.strip()):
        raise OptionError(f"option '{name}': '{value}' is not a whole number from 0 up")
    return int(value)


def size(name: str, value: str) -> int:
    match = _SIZE.fullmatch(value.strip())
    if match is None or int(match[1]) < 1:
        raise OptionError(f"option '{name}': '{value}' is not a size like 1048576, 64m or 1g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


def duration(name: str, value: str) -> float:
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise OptionError(f"option '{name}': '{value}' is not a time like 500ms, 30s, 15m or 1h")
    return int(match[1]) * _SECONDS[match[2].lower()]


def boolean(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(f"option '{name}': '{value}' is neither true nor false")
    return value.strip().lower() == "true"


def one_of(name: str, value: str, valid: Sequence[str]) -> str:
    """One of some words, whatever its case."""
    word = value.strip().lower()
    if word not in valid:
        near = difflib.get_close_matches(word, valid, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise OptionError(
            f"option '{name}': '{value}' is unknown; {hint}Valid values: {', '.join(valid)}"
        )
    return word


def moment(name: str, value: str) -> Moment:
    """A time: milliseconds since the epoch, or ISO 8601, in UTC if it does not say otherwise."""
    text = value.strip()
    if re.fullmatch(r"\d{1,18}", text):
        return Moment(int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"option '{name}': '{value}' is neither milliseconds since 1970 nor a time like "
            "2026-01-31 or 2026-01-31T12:00:00+01:00"
        ) from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    # What is before a time counts to the millisecond in which it is, and not to the next one.
    return Moment(max((time - _EPOCH) // _MILLISECOND, 0))
