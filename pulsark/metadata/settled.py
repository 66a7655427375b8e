"""A write that is repeated until its outcome is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pulsark.errors import BadVersionError, MetadataRefusedError, OutcomeUnknownError

if TYPE_CHECKING:
    from pulsark.metadata.store import MetadataStore

_ATTEMPTS = 10
_RETRY_SECONDS = 0.5


async def put_settled(
    store: MetadataStore, path: str, value: bytes, expected_version: int, *, ephemeral: bool = False
) -> int:
    """Like ``put`` at a version, but repeat a write of unknown outcome.

    At most one attempt succeeds, because all expect the same version. If a later attempt is
    refused, the stored value shows whether an earlier one succeeded. So no other writer may store
    the same value, unless it means the same.

    ``OutcomeUnknownError`` after some seconds: the write may still happen. ``BadVersionError``:
    another value is stored, perhaps over this one, so do not undo what this value refers to.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return await store.put(path, value, expected_version, ephemeral=ephemeral)
        except BadVersionError:
            found = await store.get(path) if attempt else None
            if found is not None and found.value == value:
                return found.version
            raise
        except MetadataRefusedError as error:
            if attempt:
                raise OutcomeUnknownError(str(error)) from error
            raise
        except OutcomeUnknownError:
            if attempt == _ATTEMPTS - 1:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
    raise AssertionError("not reached")
