"""Keeps the official client's log out of a command's output.

The library's logger writes to stdout, between the messages that a program may be reading there,
and its exceptions carry only the name of an error: the broker's words are in the log alone.
"""

from __future__ import annotations

import re
import tempfile

_BROKERS_WORDS = re.compile(r" msg: (\S.*)$", re.M)


class ClientLog:
    """A log file of the client library that is gone when the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            "r", prefix="pulsark-client-", suffix=".log", encoding="utf-8", errors="replace"
        )
        self._read = ""

    @property
    def path(self) -> str:
        """Where the library is to write."""
        return self._file.name

    def news(self) -> str:
        """What was logged since the last call."""
        text = self._file.read()
        self._read += text
        return text

    def brokers_words(self) -> str | None:
        """The reason that the broker gave last, if it gave any."""
        self.news()
        found = _BROKERS_WORDS.findall(self._read)
        return found[-1].strip() if found else None
