"""Spark's Python workers, which serve one task after the other."""

from __future__ import annotations

import gc


def settle() -> None:
    """What this process has imported is no garbage, and is not looked at any more.

    Spark collects garbage after each task of a worker. With pyarrow and pandas there that takes
    50 ms of a processor, more than the task of a micro-batch; settled, it takes none. Once for
    each process, when a task has imported what it needs: later calls do nothing.
    """
    if not gc.get_freeze_count():
        gc.freeze()
