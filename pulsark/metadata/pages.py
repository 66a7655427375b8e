"""Iterates over the children of a path, page by page."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.limits import METADATA_PAGE_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pulsark.metadata.store import MetadataStore


async def names_below(
    store: MetadataStore, path: str, at_once: int = METADATA_PAGE_MAX
) -> AsyncIterator[str]:
    """Names of the direct children of a path, in the store's order.

    One page is in memory at a time. A child that is added or removed meanwhile may be missed.
    """
    after = ""
    while names := await store.page(path, after, at_once):
        for name in names:
            yield name
        after = names[-1]
        await asyncio.sleep(0)  # a store in this process answers without a pause
