"""Work that follows the metadata store, and has to be done even if that does not answer at once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pulsark.errors import CorruptMetadataError, PulsarkError
from pulsark.limits import METADATA_RETRY_SECONDS, METADATA_RETRY_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def until_read(work: Callable[[], Awaitable[None]], meanwhile: str) -> None:
    """Do it until the store can be read, unless what is in it is damaged: a mend is a change.

    ``meanwhile`` says in the log what holds until then.
    """
    seconds = METADATA_RETRY_SECONDS
    while True:
        try:
            return await work()
        except CorruptMetadataError as error:
            log.warning("%s, until it is written anew: %s", meanwhile, error)
            return None
        except PulsarkError as error:
            log.warning("%s, tried again in %g s: %s", meanwhile, seconds, error)
        await asyncio.sleep(seconds)
        seconds = min(2 * seconds, METADATA_RETRY_SECONDS_MAX)
