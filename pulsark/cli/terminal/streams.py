"""Standard output and error of a command, which show names that clients chose.

Every command prints through them, so none has to think of a name that moves the cursor, changes
colours or reverses the direction of text.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Any, Final, TextIO

from pulsark.log_format import escaped

_SECRET_ARGUMENT: Final = re.compile(
    r"(?i)(.*?(?:data:[^,]*,|token:|://[^/@\s:]*:|\"(?:password|token)\"\s*:\s*\"|"
    r"(?:password|secret|secretkey|token|auth-?params)=))(.+)",
    re.S,
)
"""What comes before a secret in an argument, and the secret."""
_SECRET_OPTIONS: Final = frozenset({"--auth-params", "--token", "-sk", "--secret-key"})
_ARGUMENTS_BEGIN: Final = 48 - 3
"""Where ``/proc/self/stat`` has the start of the arguments, behind the name of the program."""


class EscapingStream:
    """A text stream that escapes all but printable characters, line ends and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text, and return its length."""
        if not text.isprintable():
            text = "".join(c if c in "\n\t" else escaped(c) for c in text)
        self.stream.write(text)
        return len(text)

    def isatty(self) -> bool:
        """Return False, so that libraries send no colours through this stream."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def escape_output() -> None:
    """Escape what this process prints from now on. Bytes to ``sys.stdout.buffer`` stay as sent."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, EscapingStream):
            setattr(sys, name, EscapingStream(stream))


def plain_stdout() -> TextIO:
    """Return standard output for text that is escaped already, and may have colours."""
    found: Any = sys.stdout
    return found.stream if isinstance(found, EscapingStream) else sys.stdout


def hide_secret_arguments() -> None:
    """Take secrets out of the arguments that ``ps`` shows to every user of the machine.

    ``sys.argv`` keeps them. Linux alone lets a process change what is shown.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        begin, end = map(int, fields[_ARGUMENTS_BEGIN : _ARGUMENTS_BEGIN + 2])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(begin)
            shown = memory.read(end - begin)
            hidden = without_secrets(shown)
            if hidden != shown:
                memory.seek(begin)
                memory.write(hidden)


def without_secrets(arguments: bytes) -> bytes:
    """Return arguments, each of which ends with a zero, with stars in place of secrets."""
    found = arguments.split(b"\0")
    is_secret = False
    for index, argument in enumerate(found):
        text = os.fsdecode(argument)
        match = _SECRET_ARGUMENT.fullmatch(text)
        if is_secret and not os.path.exists(text):
            found[index] = b"*" * len(argument)
        elif match is not None:
            kept = os.fsencode(match[1])
            found[index] = kept + b"*" * (len(argument) - len(kept))
        is_secret = text in _SECRET_OPTIONS
    return b"\0".join(found)
