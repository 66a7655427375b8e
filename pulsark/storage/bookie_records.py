"""Which bookies there are supposed to be: ``/bookies/<place>`` names the one of each place.

A name is never used again. So a bookie that a ledger names and no place does is lost for good:
its place was given to another one, because its disk had come back empty.
"""

from __future__ import annotations

import json

from pulsark.errors import MetadataError
from pulsark.metadata.store import MetadataStore

PLACES = "/bookies"


async def is_lost(bookie_id: str, metadata: MetadataStore) -> bool:
    """Whether a bookie is lost for good, not only away. Without any records nobody knows."""
    places = await metadata.children(PLACES)
    for place in places:
        found = await metadata.get(f"{PLACES}/{place}")
        try:
            if found is None or json.loads(found.value)["bookieId"] == bookie_id:
                return False
        except (KeyError, TypeError, ValueError) as e:
            raise MetadataError(f"{PLACES}/{place} cannot be read: {e!r}") from e
    return bool(places)
