"""The list of a backup's files. It is written last, so that an incomplete backup has none."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import google_crc32c

from pulsark.errors import PulsarkError

if TYPE_CHECKING:
    from pulsark.runtime import Disk

MANIFEST_NAME = "backup.json"
METADATA_NAME = "metadata.db"
FORMAT_VERSION = 1

_place = re.compile(r"bookie-(\d+)(/|$)")


class BackupError(PulsarkError):
    """A backup cannot be made, or cannot be restored; says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a backup, by their path in it: ``(size, CRC32C)``."""

    store_id: str
    mark: int
    """The metadata store's mark: the moment of the backup."""
    created_ms: int
    places: tuple[str, ...]
    """The bookies' places; each is a directory with ``journal`` and ``ledgers``."""
    files: dict[str, tuple[int, int]]
    missing: tuple[str, ...] = ()
    """Files that were not there although they should have been: the original lacks them."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())

    @property
    def highest_place(self) -> int:
        """The number of the last bookie that there is a copy of; one before it may be missing."""
        return max(map(_number_of, self.places), default=0)

    @property
    def fleet_size(self) -> int:
        """Number of bookies of the original, with those that were not there."""
        return max([self.highest_place, *map(_number_of, self.missing)])

    def encode(self) -> bytes:
        """JSON with a checksum of itself."""
        body = json.dumps({"version": FORMAT_VERSION, **asdict(self)})
        return json.dumps({"crc32c": google_crc32c.value(body.encode()), "backup": body}).encode()


def _number_of(name: str) -> int:
    """The number of the bookie that a name in a backup belongs to; 0 if to none."""
    match = _place.match(name)
    return int(match[1]) if match else 0


def read_manifest(disk: Disk, backup: str) -> Manifest:
    """The manifest of a backup; raises ``BackupError``."""
    path = f"{backup}/{MANIFEST_NAME}"
    try:
        size = disk.size(path)
        file = disk.open(path)
    except (FileNotFoundError, NotADirectoryError):
        raise BackupError(
            f"{backup} is no complete backup: there is no {path}, which is written last. "
            "Give the directory that `pulsark backup` has filled; if that was interrupted, make "
            "another backup"
        ) from None
    try:
        sealed = json.loads(file.read(0, size))
        body = sealed["backup"]
        if google_crc32c.value(body.encode()) != sealed["crc32c"]:
            raise ValueError("its checksum differs")
        fields = json.loads(body)
        version = fields.pop("version")
        if version > FORMAT_VERSION:
            raise BackupError(f"{path} has version {version}; this release knows {FORMAT_VERSION}")
        files = {name: (entry[0], entry[1]) for name, entry in fields.pop("files").items()}
        places, missing = tuple(fields.pop("places")), tuple(fields.pop("missing"))
        return Manifest(places=places, missing=missing, files=files, **fields)
    except (KeyError, TypeError, ValueError) as e:
        raise BackupError(f"{path} is damaged ({e}): use another backup") from e
    finally:
        file.close()
