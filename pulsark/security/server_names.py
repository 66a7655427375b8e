"""Keeps names of servers that are none out of the log: a TLS client may ask for any bytes.

Python decodes the name before it calls ``sni_callback``. It ends the handshake if that fails, which
is all that there is to do. But it also writes a stack trace, past all logging, and strangers could
have it do so as often as they like.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class _Hook:
    """Of all that cannot be raised, leaves out such names."""

    def __init__(self, others: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._others = others

    def __call__(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        """Python has caught something that it cannot raise."""
        error = unraisable.exc_value
        if not (isinstance(error, UnicodeDecodeError) and error.object == unraisable.object):
            self._others(unraisable)


def tell_nobody_of_wrong_names() -> None:
    """Do so from now on, in the whole process."""
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)
