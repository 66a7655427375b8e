"""Keeps a traceback out of notebooks that is no news: a worker of Spark that is not listened to.

A query that has enough rows, as ``show`` and ``limit`` have, closes the connection to its Python
workers while they write, and planning ends in the same way. Spark expects that; the daemon from
which the workers were forked prints a ``BrokenPipeError`` nevertheless.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Any

_DAEMON = "pyspark.daemon"


def keep_out() -> None:
    """In a worker of Spark: its daemon's code prints all exceptions but that one."""
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == _DAEMON:
        # The name in this process alone: the daemon, and the module ``traceback``, are as before.
        vars(main)["traceback"] = SimpleNamespace(
            print_exc=_print_exc, format_exc=traceback.format_exc
        )


def _print_exc(*arguments: Any, **named: Any) -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc(*arguments, **named)
