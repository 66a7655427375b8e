"""How the user of the command line logs in."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class CommandLogin(NamedTuple):
    """What stands before a command. ``plugin`` is ``None`` where nothing says how to log in."""

    plugin: str | None = None
    params: str = ""
    trust_path: str = ""


LOGIN: ContextVar[CommandLogin] = ContextVar("LOGIN")
"""The login of the running command."""
