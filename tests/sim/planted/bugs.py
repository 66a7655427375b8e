"""Planted bugs: small changes of the sources, each of which breaks a promise.

They stand in the TOML files beside this module, one table a bug::

    [ack_before_fsync]
    breaks = "an entry is acknowledged before it is on disk"
    file = "pulsark/storage/bookie/journal.py"
    old = '''...'''            # occurs exactly once in the file
    new = '''...'''
    strong = ["tests/sim/..."]  # simulations, contracts and scripts that ought to see it
    other = ["tests/unit/..."]  # asked when those do not
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
STRONG_PLACES = ("tests/sim/", "tests/contracts/", "tests/scripts")


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One change of one file. ``strong`` and ``other`` are arguments of pytest."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    strong: tuple[str, ...]
    other: tuple[str, ...]

    def plant(self, root: Path) -> None:
        """Change the copy of the sources at ``root``; ``ValueError`` if it does not fit."""
        path = root / self.file
        path.write_text(self.changed(path.read_text()))

    def changed(self, source: str) -> str:
        """The file with the bug; ``ValueError`` if the place is not there exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: its place is in {self.file} {found} times, not once")
        return source.replace(self.old, self.new)


def load(folder: Path = FOLDER) -> list[PlantedBug]:
    """All bugs, in the order of the files."""
    bugs = []
    for path in sorted(folder.glob("*.toml")):
        for name, fields in tomllib.loads(path.read_text()).items():
            strong, other = tuple(fields.pop("strong", ())), tuple(fields.pop("other", ()))
            bugs.append(PlantedBug(name, **fields, strong=strong, other=other))
    return bugs
