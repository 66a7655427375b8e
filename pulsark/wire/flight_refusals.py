"""Why a call over Flight was refused, in the extra info of its error.

Arrow's own errors for this are not sent: with them go the stack of the broker, for its client to
see, and a copy of it that is never freed (pyarrow 26 and before).
"""

from __future__ import annotations

NOT_FOUND = b"not-found"
"""There is no such topic, or another one has its name now."""
INVALID = b"invalid"
"""The ticket or the descriptor says nothing that can be done."""
