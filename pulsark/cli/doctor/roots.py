"""Are the storage roots, where tables are, the ones that the metadata store knows?"""

from __future__ import annotations

from collections.abc import Iterator

from pulsark.cli.doctor.finding import FAILURE, OK, Finding
from pulsark.cli.doctor.stopped import Stopped
from pulsark.metadata.paths import STORAGE_ROOTS
from pulsark.storage.table.root_identity import RefusedRootError, check_root, known_ids


def check(stopped: Stopped) -> Iterator[Finding]:
    """One finding for each storage root."""
    known = known_ids(stopped.store.below(STORAGE_ROOTS))
    for root in stopped.data.storage_roots:
        try:
            check_root(stopped.files, root, known)
        except (RefusedRootError, OSError) as e:
            yield Finding("root", FAILURE, str(e))
        else:
            yield Finding("root", OK, root)
