"""Is the metadata store readable, and is every value the one that was written?"""

from __future__ import annotations

from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, Finding
from pulsark.cli.doctor.stopped import Stopped

NAMES_SHOWN = 5


def check(stopped: Stopped) -> Iterator[Finding]:
    """Findings about ``metadata.db``."""
    store = stopped.store
    data = stopped.data.path
    restore = f"pulsark restore BACKUP --data-dir {data}"
    if store.trouble:
        yield Finding("metadata", FAILURE, "; ".join(store.trouble), restore)
    if store.damaged:
        names = ", ".join(store.damaged[:NAMES_SHOWN])
        more = "" if len(store.damaged) <= NAMES_SHOWN else ", ..."
        yield Finding(
            "metadata", FAILURE, f"{len(store.damaged)} damaged values: {names}{more}", restore
        )
    if not store.trouble and not store.damaged:
        yield Finding("metadata", OK, f"{store.values} values, all as they were written")
