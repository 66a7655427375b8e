"""Files for bulk publishes in tests: entries written as a Spark task would leave them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pulsark.runtime import Disk
from pulsark.storage.table.files.seal import read_whole, seal
from pulsark.storage.table.staging.staged_ledger import STAGING, StagedLedger, staged_name
from tests.sim.disk import SimDisk

TIME = 1_700_000_000_000


def stage(
    disk: Disk, roots: Sequence[str], partition: int, entries: Sequence[bytes], nonce: str
) -> StagedLedger:
    """Entries in the staging directories of a table's roots."""
    aside = SimDisk()
    sealed = seal(list(enumerate(entries)), partition, 0, ["/aside"], aside, nonce)
    files = []
    for number, file in enumerate(sealed):
        name = staged_name(TIME, nonce, number)
        content = read_whole(aside, f"/aside/{file.path}")
        for root in roots:
            disk.make_dirs(f"{root}/{STAGING}")
            writing = disk.create(f"{root}/{STAGING}/{name}")
            writing.writev([content])
            writing.sync()
            writing.close()
        files.append(replace(file, path=name, ledger_id=-1))
    return StagedLedger(partition, sum(map(len, entries)), tuple(files))
