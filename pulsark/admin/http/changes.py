"""Where routes tell what they change, for whoever serves the request and wants to know.

The values are those of the compare-and-set itself: what another request changed at the same time
is not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

TOLD: ContextVar[Callable[[Any, Any], None] | None] = ContextVar("TOLD", default=None)
"""Who wants to know of this request, if there is an audit."""


def tell(old: Any, new: Any) -> None:
    """A stored value is another one now; ``None`` is one that is not there."""
    told = TOLD.get()
    if told is not None:
        told(old, new)
