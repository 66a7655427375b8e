"""How full the disks of a process are: for health, metrics, the log, and to free space in time.

A disk is *full* where a bookie's journal refuses publishes, at its reserve. Below that there are
two levels for people, at shares that settings name. A disk returns to a lower level only when it is
clearly below the limit, so a use that swings around one is one line of the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from pulsark.runtime import run_in_worker
from pulsark.storage.bookie.journal_settings import JournalSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pulsark.config.settings import Settings
    from pulsark.runtime import Runtime, Worker
    from pulsark.storage.bookie.fleet import BookieHome

log = logging.getLogger(__name__)

HYSTERESIS: Final = 0.02
"""Share of the disk by which its use must fall below a limit before the level falls, too."""

RESERVE_REGAINED: Final = 1.25
"""Multiple of the reserve that must be free before a full disk stops counting as full."""


SAME_DISK_BYTES: Final = 1 << 20
"""Two directories whose free space differs by less are taken to share a disk, for the log."""


class DiskLevel(IntEnum):
    """How full a disk is."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    FULL = 3
    """Publishes are refused."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """One directory's disk, when the watch looked last."""

    path: str
    free: int
    total: int
    level: DiskLevel
    error: str = ""
    """Why the space cannot be read; then the numbers are 0."""

    @property
    def used_share(self) -> float:
        """The used share of the disk, from 0 to 1."""
        return 1 - self.free / self.total if self.total else 0.0


def level_of(
    free: int, total: int, before: DiskLevel, warn_share: float, critical_share: float
) -> DiskLevel:
    """Return the level of a disk that was at ``before``. Pure."""
    if total <= 0:
        return before
    reserve, used = JournalSettings().reserve(total), 1 - free / total

    def reaches(level: DiskLevel, share: float) -> bool:
        return used >= share - (HYSTERESIS if before >= level else 0)

    if free < reserve * (RESERVE_REGAINED if before is DiskLevel.FULL else 1):
        return DiskLevel.FULL
    if reaches(DiskLevel.CRITICAL, critical_share):
        return DiskLevel.CRITICAL
    if reaches(DiskLevel.WARNING, warn_share):
        return DiskLevel.WARNING
    return DiskLevel.OK


class DiskWatch:
    """Looks at the disks of some directories. ``look`` is the caller's to repeat."""

    def __init__(
        self,
        homes: Iterable[BookieHome],
        others: Iterable[str],
        runtime: Runtime,
        *,
        warn_share: float,
        critical_share: float,
    ) -> None:
        """``homes``: where the bookies of this machine are; ``others`` are further directories."""
        self.homes = tuple(homes)
        of_bookies = [path for home in self.homes for path in (home.journal_dir, home.ledger_dir)]
        self._paths = list(dict.fromkeys([*of_bookies, *others]))
        self._runtime = runtime
        self._shares = warn_share, critical_share
        self.keep: Callable[[], None] = lambda: None
        """Called beside each look, in a thread: it keeps up a reserve of the disk."""
        self._thread: Worker | None = None
        self._looking = False
        self._said: dict[str, DiskLevel] = {}
        self.uses: Sequence[DiskUse] = ()
        """One for each directory, in the order given."""

    @property
    def level(self) -> DiskLevel:
        """The level of the fullest disk."""
        return max((use.level for use in self.uses), default=DiskLevel.OK)

    @property
    def is_full(self) -> bool:
        """Whether a disk is full."""
        return self.level is DiskLevel.FULL

    @property
    def full_journals(self) -> int:
        """How many bookies here refuse publishes, because their journals' disks are full."""
        full = {use.path for use in self.uses if use.level is DiskLevel.FULL}
        return sum(home.journal_dir in full for home in self.homes)

    async def look(self) -> None:
        """Read the free space of all disks, and log the levels that changed."""
        if self._looking or not self._paths:
            return  # a network file system may hang
        if self._thread is None:
            self._thread = self._runtime.new_worker("disk-space")
        self._looking = True
        try:
            found = await run_in_worker(self._thread, self._read)
        finally:
            self._looking = False
        before = {use.path: use.level for use in self.uses}
        self.uses = [
            DiskUse(
                path,
                free,
                total,
                level_of(free, total, before.get(path, DiskLevel.OK), *self._shares),
                error,
            )
            for path, free, total, error in found
        ]
        self._tell()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None and not self._looking:
            self._thread.close()

    def problems(self) -> list[str]:
        """Return one sentence for each disk that is not at the lowest level, the fullest first."""
        by_disk = sorted(self._by_disk(), key=lambda uses: -uses[0].used_share)
        return [self._sentence(uses) for uses in by_disk if uses[0].level is not DiskLevel.OK]

    def _read(self) -> list[tuple[str, int, int, str]]:
        found = []
        for path in self._paths:
            try:
                found.append((path, *self._runtime.disk.space(path), ""))
            except OSError as e:
                found.append((path, 0, 0, str(e)))
        self.keep()
        return found

    def _by_disk(self) -> list[list[DiskUse]]:
        """Group directories of one disk: those with about the same numbers."""
        groups: list[list[DiskUse]] = []
        for use in self.uses:
            for group in groups:
                if use.total == group[0].total and (
                    abs(use.free - group[0].free) <= SAME_DISK_BYTES
                ):
                    group.append(use)
                    break
            else:
                groups.append([use])
        return groups

    def _tell(self) -> None:
        """Log changes, each at the level of what it ends or begins."""
        for uses in self._by_disk():
            level = uses[0].level
            before = max(self._said.get(use.path, DiskLevel.OK) for use in uses)
            if level is before:
                continue
            self._said.update((use.path, level) for use in uses)
            gravest = max(level, before)
            line = log.warning if gravest is DiskLevel.WARNING else log.error
            line("%s", self._sentence(uses))

    def _sentence(self, uses: Sequence[DiskUse]) -> str:
        use = uses[0]
        others = f" and {len(uses) - 1} more directories" if len(uses) > 1 else ""
        journals = {home.journal_dir for home in self.homes}
        is_journals = any(each.path in journals for each in uses)
        stops = "publishes are refused" if is_journals else "little is written there"
        what = _WHAT[use.level].format(stops=stops)
        return (
            f"the disk of {use.path}{others} is {use.used_share:.0%} full, "
            f"{use.free >> 20} of {use.total >> 20} MiB are free{what}"
        )


_WHAT: Final = {
    DiskLevel.OK: ": enough again",
    DiskLevel.WARNING: " (diskUsageWarnThreshold)",
    DiskLevel.CRITICAL: " (diskUsageThreshold): make room before publishes are refused",
    DiskLevel.FULL: (
        ": {stops} until there is room. Acknowledge messages, delete or truncate topics "
        "(pulsark topics truncate TOPIC), or enlarge the disk; see docs/operations.md"
    ),
}


def disk_watch_of(
    settings: Settings, homes: Iterable[BookieHome], others: Iterable[str], runtime: Runtime
) -> DiskWatch:
    """Return a watch with the limits of the settings."""
    return DiskWatch(
        homes,
        others,
        runtime,
        warn_share=settings.diskUsageWarnThreshold,
        critical_share=settings.diskUsageThreshold,
    )
