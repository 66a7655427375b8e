"""Keeps invalid server names (SNI) of TLS clients out of the log.

Python decodes the name before it calls ``sni_callback``, and rightly ends the handshake if that
fails. But it also prints a stack trace to standard error, as often as a stranger likes.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def tell_nobody_of_wrong_names() -> None:
    """Suppress these traces in the whole process."""
    before = sys.unraisablehook
    if not (isinstance(before, partial) and before.func is _tell_of_others):
        sys.unraisablehook = partial(_tell_of_others, before)


def _tell_of_others(
    before: Callable[[sys.UnraisableHookArgs], object], unraisable: sys.UnraisableHookArgs, /
) -> None:
    error = unraisable.exc_value
    if not (isinstance(error, UnicodeDecodeError) and error.object == unraisable.object):
        before(unraisable)
