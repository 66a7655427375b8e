"""Regular expressions that others write: RE2 matches them in time linear in the text.

Python's own matcher could be kept busy by one for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsark.limits import PATTERN_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable


def full_matcher(expression: str) -> Callable[[bytes], Any]:
    """What matches all of a text, in UTF-8, or gives ``None``.

    Raises ``ValueError`` with the reason if RE2 does not take the expression.
    """
    import re2  # loaded when the first pattern comes

    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_MEMORY_BYTES
    try:
        # On bytes, because for text the matcher counts characters of each text it is given.
        matcher: Callable[[bytes], Any] = re2.compile(expression.encode(), options).fullmatch
    except re2.error as error:
        raise ValueError(error.args[0].decode(errors="replace")) from error
    return matcher
