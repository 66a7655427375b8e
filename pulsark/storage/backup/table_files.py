"""Which files of the tables belong to a snapshot of the metadata.

Files of a table never change, and are removed long after they left it; commits of its log are
numbered. So all files can be copied at any time, and of the log all commits up to the table's
record.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsark.metadata.paths import TABLES, topic_at
from pulsark.storage.roots.root_files import ROOT_MARKER
from pulsark.storage.table.files.record import TableRecord
from pulsark.storage.table.log.delta_log import CorruptCommitError, DeltaLog, attach_number
from pulsark.storage.table.root_identity import storage_root_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pulsark.runtime import Disk

_LOG = "_delta_log"
_NOT_COPIED = {_LOG, "_staged"}
_LAST_CHECKPOINT = "_last_checkpoint"
_TOPIC_DEPTH = TABLES.count("/") + 4
_numbered = re.compile(r"(\d{20})\..+")


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table as the metadata know it."""

    place: str
    """Its directory below a storage root."""
    attached: int
    """The number of its last attach."""
    files: Mapping[str, tuple[int, int]]
    """What its rows are in, relative to the directory: size in bytes, and CRC of all of them."""
    topic: str
    pending: bool = False
    """Whether the last attach may not be in all logs yet."""


def known_tables(nodes: Mapping[str, bytes]) -> list[KnownTable]:
    """All tables of a metadata store; raises ``MetadataError``."""
    records: dict[str, TableRecord] = {}
    documents: dict[str, list[Any]] = {}
    for path, value in nodes.items():
        if not path.startswith(f"{TABLES}/"):
            continue
        topic = "/".join(path.split("/")[: _TOPIC_DEPTH + 1])
        with suppress(ValueError):
            documents.setdefault(topic, []).append(json.loads(value))
        if path == topic:
            records[topic] = TableRecord.decode(path, value)
    tables = []
    for topic, record in records.items():
        files = dict(named for document in documents.get(topic, ()) for named in _named(document))
        for place in dict.fromkeys(
            directory[len(storage_root_of(directory)) + 1 :] for directory in record.roots
        ):
            tables.append(
                KnownTable(place, record.attached, files, topic_at(TABLES, topic), record.pending)
            )
    return tables


def _named(document: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Path, size and CRC of each file that a document says is in the table, and has not left it."""
    if isinstance(document, dict):
        if "path" in document and "crc32c" in document:
            yield str(document["path"]), (int(document["size"]), int(document["crc32c"]))
            return
        for key, value in document.items():
            if key not in ("removes", "left"):
                yield from _named(value)
    elif isinstance(document, list):
        for value in document:
            yield from _named(value)


def data_files(root: str, table: KnownTable) -> Iterator[str]:
    """Files of a table on a root, but for its log; relative to the root."""
    top = os.path.join(root, table.place)
    for directory, names, files in os.walk(top):
        if directory == top:
            names[:] = [name for name in names if name not in _NOT_COPIED]
        for name in files:
            if not name.endswith(".tmp"):
                yield os.path.relpath(os.path.join(directory, name), root)


def log_files(disk: Disk, root: str, table: KnownTable) -> Iterator[str]:
    """Files of a table's log on a root that are not later than the metadata; relative to it."""
    directory = f"{root}/{table.place}"
    end = _first_later(DeltaLog(disk, directory), table.attached)
    for name in disk.list(f"{directory}/{_LOG}"):
        match = _numbered.fullmatch(name)
        if name.endswith(".tmp") or (match and int(match[1]) >= end):
            continue
        if name == _LAST_CHECKPOINT and _version_in(disk, f"{directory}/{_LOG}/{name}") >= end:
            continue  # a hint, which readers can do without
        yield f"{table.place}/{_LOG}/{name}"


def _first_later(log: DeltaLog, attached: int) -> int:
    """The first version that an attach has which the metadata do not know."""
    versions = log.versions()
    first = versions[-1] + 1 if versions else 1 << 62
    for version in reversed(versions):
        with suppress(CorruptCommitError, FileNotFoundError):
            number = attach_number(log.read(version))
            if number is not None and number > attached:
                first = version
            elif number is not None:
                break
    return first


def _version_in(disk: Disk, path: str) -> int:
    with suppress(OSError, ValueError, KeyError, TypeError):
        file = disk.open(path)
        try:
            return int(json.loads(file.read(0, 1 << 16))["version"])
        finally:
            file.close()
    return 1 << 62


def markers(root: str) -> Iterator[str]:
    """The file that says which root it is."""
    if os.path.exists(os.path.join(root, ROOT_MARKER)):
        yield ROOT_MARKER
