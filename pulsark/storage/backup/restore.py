"""Makes a data directory from a backup."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from pulsark.file_locks import LOCK_NAME
from pulsark.storage.backup.copier import Copier
from pulsark.storage.backup.manifest import METADATA_NAME, BackupError, Manifest
from pulsark.storage.bookie.identity import IDENTITY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pulsark.runtime import Disk
    from pulsark.storage.backup.data_dir import DataDir


def check_empty(data: DataDir, disk: Disk) -> None:
    """Raise ``BackupError`` if something of a standalone is in the directories.

    Existing files may be newer than the backup, and a mix would be consistent with neither.
    """
    bookies = [path for home in data.homes for path in (home.journal_dir, home.ledger_dir)]
    for path in (data.metadata_path, *bookies):
        is_entry = os.path.exists(path) and not os.path.isdir(path)
        names = [path] if is_entry else disk.list(path)
        if set(names) - {LOCK_NAME}:
            raise BackupError(
                f"{path} belongs to a standalone, and may have newer messages than the backup. "
                "Restore into an empty directory, or move this one away first"
            )


def check_directories(data: DataDir) -> None:
    """Raise ``BackupError`` if a link below the data directory leads to a bookie's directories.

    A directory elsewhere is named by ``journalDirectories`` or ``ledgerDirectories``: what a
    restore writes to is to be told by its user and not by what lies in the target.
    """
    for home in data.homes:
        for path in (home.journal_dir, home.ledger_dir):
            below = os.path.relpath(path, data.path)
            if below.startswith(".."):
                continue
            parts = below.split("/")
            for count in range(1, len(parts) + 1):
                link = os.path.join(data.path, *parts[:count])
                if os.path.islink(link):
                    raise BackupError(
                        f"{link} is a link: remove it, or name the directory that it leads to in "
                        "journalDirectories and ledgerDirectories"
                    )


def restore(
    manifest: Manifest,
    backup: str,
    data: DataDir,
    disk: Disk,
    copied: Callable[[int], None] = lambda size: None,
) -> None:
    """Copy a backup into empty directories; raises ``BackupError`` if it is damaged.

    The metadata store comes last: without it, a standalone refuses the bookies.
    """
    if len(data.homes) < manifest.highest_place:
        raise BackupError(
            f"the backup has bookies up to {manifest.places[-1]}, and there are directories for "
            f"{len(data.homes)}: set journalDirectories and ledgerDirectories for all of them"
        )
    check_directories(data)
    homes = {f"bookie-{number}": home for number, home in enumerate(data.homes, 1)}
    for name in _in_order(manifest.files):
        place, _, rest = name.partition("/")
        kind, _, below = rest.partition("/")
        if name == METADATA_NAME:
            path = data.metadata_path
        elif place in homes and kind in ("journal", "ledgers"):
            home = homes[place]
            path = f"{home.journal_dir if kind == 'journal' else home.ledger_dir}/{below}"
        else:
            raise BackupError(f"{backup}: {name} is not a file of a data directory")
        copier = Copier(disk, os.path.dirname(path), copied)
        with contextlib.suppress(FileNotFoundError):  # what follows says so
            if disk.size(f"{backup}/{name}") == manifest.files[name][0]:
                copier.copy(backup, name, os.path.basename(path))
        if copier.files.get(os.path.basename(path)) != manifest.files[name]:
            raise BackupError(
                f"{backup}/{name} is not as it was written: use another backup, and remove "
                f"{data.path}, which is not complete"
            )


def _in_order(names: Iterable[str]) -> list[str]:
    """Identities first, the metadata store last."""
    return sorted(
        names, key=lambda name: (name == METADATA_NAME, not name.endswith(f"/{IDENTITY_NAME}"))
    )
