"""A stopped data directory, as the checks see it: nothing in it is changed.

What several checks need (the journals, the metadata store) is read once, when the first one asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pulsark.errors import PulsarkError
from pulsark.metadata.paths import BOOKIES
from pulsark.metadata.sqlite_reading import StoreReading, read_store
from pulsark.runtime import Disk, OsDisk, SystemClock
from pulsark.storage.backup.data_dir import DataDir
from pulsark.storage.bookie.fleet import BookieHome
from pulsark.storage.bookie.identity import Identity, load_identity
from pulsark.storage.bookie.journal_recovery import RecoveredJournal, recover_journal
from pulsark.storage.bookie.segment_scan import UnknownVersionError
from pulsark.storage.roots.any_root import files_of_roots
from pulsark.storage.roots.options import ObjectStoreOptions

if TYPE_CHECKING:
    from pulsark.config.settings import Settings
    from pulsark.storage.roots.root_files import RootFiles


class UnchangingDisk(OsDisk):
    """The disk, but what would change a file is left out: recovery only reports."""

    def truncate(self, path: str, size: int) -> None:
        pass

    def write_again(self, path: str, start: int) -> None:
        pass

    def sync_names(self, path: str) -> None:
        pass

    def remove(self, path: str) -> None:
        pass

    def remove_dir(self, path: str) -> None:
        pass

    def make_dirs(self, path: str) -> None:
        pass

    def write_atomic(self, path: str, data: bytes) -> None:
        pass


@dataclass(slots=True)
class StoppedBookie:
    """One bookie's directories: whose they are, and what its journal says."""

    place: str
    """As in ``/bookies/<place>``."""
    home: BookieHome
    in_journal: Identity | None = None
    in_ledgers: Identity | None = None
    journal: RecoveredJournal | None = None
    trouble: list[str] = field(default_factory=list)
    """Why one of these could not be read."""

    @property
    def is_empty(self) -> bool:
        """Whether there never was a bookie here, or its disks are gone."""
        return not (self.in_journal or self.in_ledgers or self.trouble)


class Stopped:
    """What the checks examine."""

    def __init__(self, settings: Settings, disk: Disk | None = None) -> None:
        self.disk = disk or UnchangingDisk()
        self.store: StoreReading = read_store(DataDir.of(settings).metadata_path)
        """The metadata store, with what is wrong with it."""
        self.data = DataDir.found(settings, self.disk, len(self.store.below(BOOKIES)))
        self.files: RootFiles = files_of_roots(
            self.data.storage_roots, self.disk, ObjectStoreOptions.of(settings), SystemClock()
        )
        """Those of the storage roots."""

    @cached_property
    def bookies(self) -> list[StoppedBookie]:
        """The bookies of the directory, by place."""
        return [
            self._bookie(f"bookie-{place}", home) for place, home in enumerate(self.data.homes, 1)
        ]

    def _bookie(self, place: str, home: BookieHome) -> StoppedBookie:
        bookie = StoppedBookie(place, home)
        attempt = _Attempt(bookie.trouble)
        bookie.in_journal = attempt(lambda: load_identity(self.disk, home.journal_dir))
        bookie.in_ledgers = attempt(lambda: load_identity(self.disk, home.ledger_dir))
        known = bookie.in_ledgers or bookie.in_journal
        if known is not None:
            bookie.journal = attempt(
                lambda: recover_journal(
                    self.disk,
                    home.journal_dir,
                    home.ledger_dir,
                    known.instance_id,
                    all_of_it=True,
                )
            )
        return bookie


@dataclass(frozen=True, slots=True)
class _Attempt:
    trouble: list[str]

    def __call__(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (OSError, PulsarkError, UnknownVersionError) as e:
            self.trouble.append(str(e))
            return None
