"""The list of a backup's files. It is written last, so that an incomplete backup has none."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

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

MANIFEST_BYTES_MAX: Final = 1 << 30
"""Bytes of a manifest that is read; about 100 for each file of a backup."""

_SIZE_MAX: Final = (1 << 63) - 1
_CRC_MAX: Final = (1 << 32) - 1
_TIME_MAX_MS: Final = 253_402_300_799_000
"""The end of the year 9999."""

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
        if size > MANIFEST_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, and may have {MANIFEST_BYTES_MAX}")
        sealed = _object("it", json.loads(file.read(0, size), object_pairs_hook=_without_repeats))
        body, crc = sealed.get("backup"), sealed.get("crc32c")
        if not isinstance(body, str):
            raise ValueError(f"'backup' must be text, not {_shown(body)}")
        if google_crc32c.value(body.encode()) != _integer("crc32c", crc, _CRC_MAX):
            raise ValueError("its checksum differs")
        fields = _object("'backup'", json.loads(body, object_pairs_hook=_without_repeats))
        version = _integer("version", fields.get("version"), _SIZE_MAX)
        if version > FORMAT_VERSION:
            raise BackupError(f"{path} has version {version}; this release knows {FORMAT_VERSION}")
        return _manifest_of(fields)
    except OSError as e:
        raise BackupError(f"{path} cannot be read: {e.strerror or e}") from e
    except (ValueError, RecursionError, MemoryError) as e:
        raise BackupError(f"{path} is damaged ({e}): use another backup") from e
    finally:
        file.close()


def _manifest_of(fields: dict[str, Any]) -> Manifest:
    """Check everything that becomes a path or a number; raises ``ValueError``.

    The checksum proves only that the manifest is whole: anybody can compute it.
    """
    files: dict[str, tuple[int, int]] = {}
    for name, pair in _object("'files'", fields.get("files")).items():
        if name != METADATA_NAME:
            _check_name(name)
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError(f"{_shown(name)} must have [SIZE, CRC32C], not {_shown(pair)}")
        file_size = _integer(f"the size of {_shown(name)}", pair[0], _SIZE_MAX)
        files[name] = file_size, _integer(f"the CRC32C of {_shown(name)}", pair[1], _CRC_MAX)
    directories = {parent for name in files for parent in _parents(name)}
    if both := directories & files.keys():
        raise ValueError(f"{min(both)!r} is a file and a directory")
    places = _texts("places", fields.get("places"))
    if not all(map(_bookie.fullmatch, places)):
        raise ValueError("it names places that no bookie has")
    return Manifest(
        store_id=_texts("store_id", [fields.get("store_id")])[0],
        mark=_integer("mark", fields.get("mark"), _SIZE_MAX),
        created_ms=_integer("created_ms", fields.get("created_ms"), _TIME_MAX_MS),
        places=places,
        files=files,
        missing=_texts("missing", fields.get("missing")),
    )


def _object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object, not {_shown(value)}")
    return value


def _integer(what: str, value: Any, most: int) -> int:
    """Return a whole number of a manifest. JSON has Infinity and true, too."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{what} must be a whole number from 0 to {most}, not {_shown(value)}")
    return value


def _texts(what: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{what} must be text, not {_shown(value)}")
    return tuple(value)


def _shown(value: Any) -> str:
    """Return the beginning of a wrong value; an integer may be too long to be written."""
    try:
        return repr(value)[:200]
    except (ValueError, RecursionError):
        return f"a long {type(value).__name__}"


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
        raise ValueError(f"{_shown(name)} is not a file of a data directory")


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
