"""Keeps invalid server names out of the log: a TLS client may ask for any bytes.

Python decodes the name before it calls ``sni_callback``. It ends the handshake if that fails, which
is all that there is to do. But it also writes a stack trace, past all logging, and strangers could
have it do so as often as they like.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def tell_nobody_of_wrong_names() -> None:
    """Do so from now on, in the whole process."""
    before = sys.unraisablehook
    if not (isinstance(before, partial) and before.func is _tell_of_others):
        sys.unraisablehook = partial(_tell_of_others, before)


def _tell_of_others(
    before: Callable[[sys.UnraisableHookArgs], object], unraisable: sys.UnraisableHookArgs, /
) -> None:
    error = unraisable.exc_value
    if not (isinstance(error, UnicodeDecodeError) and error.object == unraisable.object):
        before(unraisable)
