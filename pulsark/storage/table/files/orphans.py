"""Files that were staged for a table and that no attach names: what interrupted attempts leave.

The name of a file says when its attempt began (``nonce``). A file is deleted at once when its
attempt fails, and otherwise when it is old and neither in the table nor one that left it
(``unnamed_files``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pulsark.storage.roots.root_files import RootFiles

_name = re.compile(r"part-\d+-([0-9a-f]{12})[0-9a-f]{12}-\d+\.parquet")


def nonce(now_ms: int, bits: int) -> str:
    """What makes the file names of one attempt differ from all others; 48 random ``bits``."""
    return f"{now_ms:012x}{bits:012x}"


def nonce_like(other: str, bits: int) -> str:
    """Another one, of the same time."""
    return f"{other[:12]}{bits % (1 << 48):012x}"


def remove_attempt(
    disk: RootFiles, directory: str, partition: int, ledger_id: int, nonce: str
) -> None:
    """Delete what a failed attempt wrote for a ledger. Blocks; raises ``OSError``."""
    where = f"{directory}/partition={partition}/ledger_id={ledger_id}"
    for name in disk.list(where):
        if f"-{nonce}-" in name:
            disk.remove(f"{where}/{name}")


def ledger_directories(disk: RootFiles, directory: str) -> list[str]:
    """Where a table's files are, below its directory. Blocks."""
    return [
        f"{partition}/{ledger}"
        for partition in disk.list(directory)
        if partition.startswith("partition=")
        for ledger in disk.list(f"{directory}/{partition}")
        if ledger.startswith("ledger_id=")
    ]


def ledger_of(path: str) -> int:
    """The ledger whose directory a path is in, or is."""
    ledger_id = path.split("/")[1].removeprefix("ledger_id=")
    return int(ledger_id) if ledger_id.isdigit() else -1


def old_files(
    disk: RootFiles, directory: str, ledger_directories: Iterable[str], before_ms: int
) -> list[str]:
    """Files of attempts that began before a time. Blocks."""
    found = []
    for ledger in ledger_directories:
        for name in disk.list(f"{directory}/{ledger}"):
            match = _name.fullmatch(name)
            if match is not None and int(match[1], 16) < before_ms:
                found.append(f"{ledger}/{name}")
    return found
