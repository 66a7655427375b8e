"""What ends a command with one line and exit code 1."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot be done; ``str(e)`` tells the user why, and the cure."""
