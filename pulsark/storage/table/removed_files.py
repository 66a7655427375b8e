"""Deleting files on all storage roots of a table, a few at a time."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pulsark.runtime import Worker, run_in_worker
from pulsark.storage.table.files.root_files import remove_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pulsark.storage.roots.root_files import RootFiles

log = logging.getLogger(__name__)


async def remove_everywhere(
    disk: RootFiles, worker: Worker, roots: Sequence[str], paths: Sequence[str], at_once: int
) -> None:
    """Delete files that are no part of a table; a root that is away keeps its copies."""
    for root in roots:
        try:
            for start in range(0, len(paths), at_once):
                some = paths[start : start + at_once]
                await run_in_worker(worker, partial(remove_files, disk, root, some))
        except OSError as e:
            log.warning("%s: cannot delete files that left the table yet: %s", root, e)
