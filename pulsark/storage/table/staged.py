"""Files that were staged for a table and that no attach names: what interrupted attempts leave.

The name of a file says when its attempt began (``nonce``). A file is deleted at once when its
attempt fails, and otherwise when it is old and neither in the table nor one that left it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from pulsark.runtime import Disk

_name = re.compile(r"part-\d+-([0-9a-f]{12})[0-9a-f]{12}-\d+\.parquet")


def nonce(now_ms: int, bits: int) -> str:
    """What makes the file names of one attempt differ from all others; 48 random ``bits``."""
    return f"{now_ms:012x}{bits:012x}"


def remove_attempt(disk: Disk, directory: str, partition: int, ledger_id: int, nonce: str) -> None:
    """Delete what a failed attempt wrote for a ledger. Blocks; raises ``OSError``."""
    where = f"{directory}/partition={partition}/ledger_id={ledger_id}"
    for name in disk.list(where):
        if f"-{nonce}-" in name:
            disk.remove(f"{where}/{name}")


def remove_old(disk: Disk, directory: str, named: Collection[str], before_ms: int) -> int:
    """Delete files staged before a time whose paths are not ``named``; returns their number."""
    old = [path for path in _staged_before(disk, directory, before_ms) if path not in named]
    for path in old:
        disk.remove(f"{directory}/{path}")
    return len(old)


def _staged_before(disk: Disk, directory: str, before_ms: int) -> Iterator[str]:
    for partition in disk.list(directory):
        if not partition.startswith("partition="):
            continue
        for ledger in disk.list(f"{directory}/{partition}"):
            for name in disk.list(f"{directory}/{partition}/{ledger}"):
                found = _name.fullmatch(name)
                if found is not None and int(found[1], 16) < before_ms:
                    yield f"{partition}/{ledger}/{name}"
