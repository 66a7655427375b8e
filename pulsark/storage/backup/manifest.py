"""The list of a backup's files. It is written last, so that an incomplete backup has none."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c

from pulsark.errors import PulsarkError
from pulsark.file_locks import LOCK_NAME
from pulsark.storage.roots.root_files import check_relative

if TYPE_CHECKING:
    from pulsark.runtime import Disk

MANIFEST_NAME = "backup.json"
METADATA_NAME = "metadata.db"
FORMAT_VERSION = 1
KINDS = ("journal", "ledgers")
"""The two directories of a bookie."""

_place = re.compile(r"bookie-([1-9]\d?)(/|$)")
_bookie = re.compile(r"bookie-[1-9]\d?")


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
        file = disk.open_below(backup, MANIFEST_NAME)
    except OSError as e:
        if not isinstance(e, FileNotFoundError | NotADirectoryError):
            raise BackupError(f"{path} cannot be read: {e.strerror}") from e
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
        fields = json.loads(body, object_pairs_hook=_without_repeats)
        version = int(fields.pop("version"))
        if version > FORMAT_VERSION:
            raise BackupError(f"{path} has version {version}; this release knows {FORMAT_VERSION}")
        return _manifest_of(fields)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as e:
        raise BackupError(f"{path} is damaged ({e}): use another backup") from e
    finally:
        file.close()


def _manifest_of(fields: dict[str, Any]) -> Manifest:
    """Check everything that becomes a path or a number; raises ``ValueError`` and the like.

    The checksum proves only that the manifest is whole: anybody can compute it.
    """
    files: dict[str, tuple[int, int]] = {}
    for name, (size, crc) in fields.pop("files").items():
        if name != METADATA_NAME:
            _check_name(name)
        if int(size) < 0:
            raise ValueError(f"{name!r} has a negative size")
        files[name] = int(size), int(crc)
    directories = {parent for name in files for parent in _parents(name)}
    if both := directories & files.keys():
        raise ValueError(f"{min(both)!r} is a file and a directory")
    places = tuple(map(str, fields.pop("places")))
    if not all(map(_bookie.fullmatch, places)):
        raise ValueError("it names places that no bookie has")
    return Manifest(
        store_id=str(fields.pop("store_id")),
        mark=int(fields.pop("mark")),
        created_ms=int(fields.pop("created_ms")),
        places=places,
        files=files,
        missing=tuple(map(str, fields.pop("missing"))),
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a name twice")
    return found


def _check_name(name: str) -> None:
    check_relative(name)
    place, _, rest = name.partition("/")
    kind, _, below = rest.partition("/")
    if not _bookie.fullmatch(place) or kind not in KINDS or not below or below == LOCK_NAME:
        raise ValueError(f"{name!r} is not a file of a data directory")


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
