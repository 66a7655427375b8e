"""Is the metadata store readable, and is every value the one that was written?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, Finding, restoring
from pulsark.cli.doctor.stopped import Stopped


def check(stopped: Stopped) -> Iterator[Finding]:
    """Findings about ``metadata.db``."""
    store = stopped.store
    data = stopped.data.path
    restore = restoring(data)
    if store.trouble:
        yield Finding("metadata", FAILURE, "; ".join(store.trouble), restore)
    for path in store.damaged:
        yield Finding(
            "metadata",
            FAILURE,
            f"the value of {path} is damaged",
            f"{restore}\npulsark doctor --data-dir {data} --accept-loss {shlex.quote(path)} "
            "(it is gone then, and with it what it said)",
        )
    if not store.trouble and not store.damaged:
        yield Finding("metadata", OK, f"{store.values} values, all as they were written")
