"""Spark's Python workers, which serve one task after the other."""

from __future__ import annotations

import gc


def settle() -> None:
    """Exclude everything imported so far from garbage collection, once per process.

    Spark collects garbage after each task of a worker. With pyarrow and pandas imported, that takes
    50 ms of processor time, more than a task of a micro-batch; afterwards it takes none.
    """
    if not gc.get_freeze_count():
        gc.freeze()
