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
    """As ``put`` at a version; a write of unknown outcome is repeated.

    Of the attempts one at most is made: they all expect the same version. So if it is a later one
    that is refused, the stored value tells whether an earlier one was made. Nobody else writes this
    value: it has an identity in it, or says what whoever wrote it wanted, too.

    ``OutcomeUnknownError`` after some seconds; then it may still be made. ``BadVersionError``:
    another value is there, but maybe behind this one, so what this one names is not undone.
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
