"""Are the storage roots, where tables are, the ones that the metadata store knows?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulsark.cli.doctor.finding import FAILURE, OK, Finding
from pulsark.cli.doctor.stopped import Stopped
from pulsark.metadata.paths import STORAGE_ROOTS
from pulsark.storage.table.root_identity import RefusedRootError, check_root, known_ids, root_id


def check(stopped: Stopped) -> Iterator[Finding]:
    """One finding for each storage root."""
    known = known_ids(stopped.store.below(STORAGE_ROOTS))
    before = {root_id: root for root, root_id in known.items()}
    for root in stopped.data.storage_roots:
        try:
            check_root(stopped.files, root, known)
            if root in known or not known:
                yield Finding("root", OK, root)
            else:
                yield _unknown(root, root_id(stopped.files, root), before)
        except (RefusedRootError, OSError) as e:
            yield Finding("root", FAILURE, str(e))


def _unknown(root: str, found: str, before: Mapping[str, str]) -> Finding:
    """Judge a root that the store does not know under this path, as after a move."""
    if found in before:
        return Finding("root", OK, f"{root} was {before[found]} before")
    names = ", ".join(sorted(before.values()))
    return Finding(
        "root",
        FAILURE,
        f"{root} is {found}, which the metadata store does not know; it knows {names}",
        "mount the right directory, or name it in tableRoots (ledgerDirectories)",
    )
