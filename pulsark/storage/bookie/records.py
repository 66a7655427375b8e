"""Which bookies there are supposed to be: ``/bookies/<place>`` names the one of each place.

A name is never used again. So a bookie that a ledger names and no place does is lost for good:
its place was given to another one, because its disk had come back empty.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pulsark.errors import MetadataError
from pulsark.metadata.paths import BOOKIES, bookie_path

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore


async def is_lost(bookie_id: str, metadata: MetadataStore) -> bool:
    """Whether a bookie is lost for good, not only away. Without records that is unknown."""
    places = await metadata.children(BOOKIES)
    for place in places:
        found = await metadata.get(bookie_path(place))
        try:
            if found is None or json.loads(found.value)["bookieId"] == bookie_id:
                return False
        except (KeyError, TypeError, ValueError) as e:
            raise MetadataError(f"{bookie_path(place)} cannot be read: {e!r}") from e
    return bool(places)
