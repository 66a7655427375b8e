"""A job's progress, printed on a terminal only."""

from __future__ import annotations

from typing import TextIO

from pulsark.runtime import Clock, SystemClock

REDRAW_SECONDS = 0.1


class ProgressLine:
    """One line that is written over."""

    def __init__(self, out: TextIO, clock: Clock | None = None) -> None:
        self._out = out
        self._clock = clock or SystemClock()
        self._shown = out.isatty()
        self._width = 0
        self._next = 0.0

    def show(self, what: str, done: int = 0, total: int = 0) -> None:
        """``what`` is going on; of ``total`` steps, if they are known, ``done``."""
        now = self._clock.monotonic()
        if not self._shown or (now < self._next and done < total):
            return
        self._next = now + REDRAW_SECONDS
        share = f" {done:,} of {total:,} ({100 * done // total} %)" if total else ""
        self._write(f"{what}{share}")

    def close(self) -> None:
        """Make room for what is printed next."""
        if self._width:
            self._write("")
            self._out.write("\r")
            self._out.flush()
            self._width = 0

    def _write(self, text: str) -> None:
        self._out.write(f"\r{text:<{self._width}}")
        self._out.flush()
        self._width = len(text)
