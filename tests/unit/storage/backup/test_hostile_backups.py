"""A backup that somebody else prepared: restore writes below its target, and reads no links."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from pulsark.config.settings import Settings
from pulsark.errors import MetadataError
from pulsark.runtime import OsDisk
from pulsark.storage.backup.data_dir import DataDir
from pulsark.storage.backup.manifest import BackupError, Manifest, read_manifest
from pulsark.storage.backup.restore import check_empty, restore
from pulsark.storage.table.files.record import SealedLedger, TableRecord
from pulsark.storage.table.tables_to_delete import TableToDelete

CONTENT = b"entries"


class Prepared:
    """A backup with the files that its manifest lists, and the target of its restore."""

    def __init__(self, top: Path) -> None:
        self.backup = top / "backup"
        self.data = DataDir.of(Settings(dataDir=str(top / "new")))
        self.files: dict[str, Any] = {}
        self.places: list[str] = ["bookie-1"]
        self.outside = top / "outside"
        self.outside.mkdir()
        (self.outside / "keys").write_bytes(b"the victim's")

    def listed(self, name: str, content: bytes = CONTENT) -> None:
        self.files[name] = [len(content), google_crc32c.value(content)]

    def has(self, name: str, content: bytes = CONTENT) -> Path:
        path = self.backup / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.listed(name, content)
        return path

    def restore(self) -> None:
        disk = OsDisk()
        self.backup.mkdir(exist_ok=True)
        manifest = Manifest("s", 1, 1, tuple(self.places), self.files)
        (self.backup / "backup.json").write_bytes(manifest.encode())
        found = read_manifest(disk, str(self.backup))
        check_empty(self.data, disk)
        restore(found, str(self.backup), self.data, disk)

    @property
    def written(self) -> list[str]:
        new = Path(self.data.path)
        return [str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()]

    def refused(self, match: str = ".") -> None:
        before = sorted(self.outside.rglob("*"))
        with pytest.raises(BackupError, match=match):
            self.restore()
        assert sorted(self.outside.rglob("*")) == before
        assert (self.outside / "keys").read_bytes() == b"the victim's"


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    return Prepared(tmp_path)


def test_a_sound_backup_is_restored(prepared: Prepared) -> None:
    prepared.has("bookie-1/journal/0.journal")
    prepared.has("bookie-1/ledgers/table/a/b/c/_delta_log/0.json")
    prepared.has("metadata.db")
    prepared.restore()
    assert sorted(prepared.written) == [
        "bookies/bookie-1/journal/0.journal",
        "bookies/bookie-1/ledgers/table/a/b/c/_delta_log/0.json",
        "metadata.db",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "bookie-1/ledgers/../../../outside/keys",
        "bookie-1/ledgers/..",
        "bookie-1/ledgers//etc/passwd",
        "bookie-1/ledgers/./x",
        "bookie-1/ledgers/",
        "bookie-1/ledgers",
        "bookie-1/LOCK",
        "bookie-1/journal/LOCK",
        "bookie-1/other/x",
        "bookie-01/journal/x",
        "bookie-1/journal/a\nb",
        "bookie-1/journal/a\0b",
        "bookie-1/journal/\u202egpj",
        "../outside/keys",
        "/etc/passwd",
        "./metadata.db",
        "",
    ],
)
def test_names_that_lead_elsewhere_are_refused(prepared: Prepared, name: str) -> None:
    prepared.listed(name)
    prepared.refused("damaged")
    assert not Path(prepared.data.path).exists()


def _link(prepared: Prepared, path: Path) -> None:
    path.unlink()
    path.symlink_to(prepared.outside / "keys")


def _pipe(prepared: Prepared, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
    prepared.listed("bookie-1/journal/0.journal", b"")


def _link_to_directory(prepared: Prepared, path: Path) -> None:
    path.unlink()
    path.parent.rmdir()
    (prepared.outside / "0.journal").write_bytes(CONTENT)
    path.parent.symlink_to(prepared.outside)


def _directory(prepared: Prepared, path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other_size(prepared: Prepared, path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


def _gone(prepared: Prepared, path: Path) -> None:
    path.unlink()


def _changed(prepared: Prepared, path: Path) -> None:
    path.write_bytes(CONTENT[::-1])


@pytest.mark.parametrize(
    "change",
    [_link, _pipe, _link_to_directory, _directory, _other_size, _gone, _changed],
)
def test_only_the_plain_files_that_were_written_are_read(
    prepared: Prepared, change: Callable[[Prepared, Path], None]
) -> None:
    path = prepared.has("bookie-1/journal/0.journal")
    if change is _link:
        prepared.listed("bookie-1/journal/0.journal", b"the victim's")
    change(prepared, path)
    prepared.refused()
    assert "metadata.db" not in prepared.written


def test_a_file_that_is_also_a_directory_is_refused(prepared: Prepared) -> None:
    prepared.listed("bookie-1/ledgers/d")
    prepared.listed("bookie-1/ledgers/d/e")
    prepared.refused("a file and a directory")


@pytest.mark.parametrize("places", [["bookie-999999999"], ["../x"], ["bookie-0"], [["a"]]])
def test_places_that_no_bookie_has_are_refused(prepared: Prepared, places: list[Any]) -> None:
    prepared.places = places
    prepared.refused("damaged")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"backup": 5, "crc32c": 5}',
        b"[" * 100_000,
        b'{"backup": {}, "crc32c": 5}',
    ],
)
def test_a_manifest_that_is_none_is_damaged(prepared: Prepared, body: bytes) -> None:
    prepared.backup.mkdir()
    (prepared.backup / "backup.json").write_bytes(body)
    with pytest.raises(BackupError, match="damaged"):
        read_manifest(OsDisk(), str(prepared.backup))


def test_a_manifest_that_has_a_name_twice_is_damaged(prepared: Prepared) -> None:
    prepared.has("metadata.db")
    prepared.restore()
    sealed = json.loads((prepared.backup / "backup.json").read_text())
    body = sealed["backup"].replace('"metadata.db":', '"metadata.db": [7, 1], "metadata.db":')
    sealed = {"backup": body, "crc32c": google_crc32c.value(body.encode())}
    (prepared.backup / "backup.json").write_text(json.dumps(sealed))
    with pytest.raises(BackupError, match="twice"):
        read_manifest(OsDisk(), str(prepared.backup))


@pytest.mark.parametrize("files", [[], {"metadata.db": [1]}, {"metadata.db": [-1, 0]}, {"x": "ab"}])
def test_files_of_another_form_are_damaged(prepared: Prepared, files: Any) -> None:
    prepared.files = files
    prepared.refused("damaged")


@pytest.mark.parametrize("link", ["bookies", "bookies/bookie-1", "bookies/bookie-1/journal"])
def test_links_in_the_target_are_refused(prepared: Prepared, link: str) -> None:
    prepared.has("bookie-1/journal/0.journal")
    path = Path(prepared.data.path, link)
    path.parent.mkdir(parents=True)
    target = prepared.outside / "empty"
    target.mkdir()
    path.symlink_to(target)
    prepared.refused("is a link")


def test_a_link_for_the_metadata_store_is_replaced(prepared: Prepared) -> None:
    prepared.has("metadata.db")
    Path(prepared.data.path).mkdir()
    Path(prepared.data.path, "metadata.db").symlink_to(prepared.outside / "new")
    prepared.restore()
    assert not (prepared.outside / "new").exists()
    assert Path(prepared.data.path, "metadata.db").read_bytes() == CONTENT


FILE = {
    "path": "partition=0/ledger_id=1/f.parquet",
    "partition": 0,
    "ledgerId": 1,
    "entries": [0, 0],
    "rows": 1,
    "size": 1,
    "crc32c": 1,
    "stats": {},
}


@pytest.mark.parametrize("path", ["../../../keys", "/etc/passwd", "a/../../b", "a//b"])
def test_paths_in_the_metadata_store_stay_below_their_table(path: str) -> None:
    document = {"version": 1, "ledgerId": 1, "partition": 0, "files": [FILE], "left": [["a", 1]]}
    SealedLedger.decode("/p", json.dumps(document).encode())
    for changed in ({"files": [{**FILE, "path": path}]}, {"left": [[path, 1]]}):
        with pytest.raises(MetadataError):
            SealedLedger.decode("/p", json.dumps(document | changed).encode())


@pytest.mark.parametrize("directory", ["/root/../../victim", "/root/a/../b", "/root/a/b/.."])
def test_directories_in_the_metadata_store_stay_below_their_root(directory: str) -> None:
    record = TableRecord("ab" * 16, 1, (directory,))
    with pytest.raises(MetadataError):
        TableRecord.decode("/p", record.encode())
    with pytest.raises(MetadataError):
        TableRecord.decode("/p", TableRecord("../../..", 1, ("/root/a/b/c",)).encode())
    with pytest.raises(MetadataError):
        TableToDelete.decode("ab" * 16, TableToDelete("ab" * 16, "t", (directory,)).encode())


WRONG_NUMBERS = [
    float("inf"), float("-inf"), float("nan"), -1, 1 << 63, 10**400, 1.5, 1e300, True, None, "7",
    [], {},
]  # fmt: skip


@pytest.mark.parametrize("value", WRONG_NUMBERS)
@pytest.mark.parametrize("field", ["size", "crc", "version", "mark", "created_ms", "crc32c"])
def test_a_number_that_is_none_is_named(prepared: Prepared, field: str, value: Any) -> None:
    prepared.backup.mkdir()
    body: dict[str, Any] = {
        "version": 1, "store_id": "s", "mark": 1, "created_ms": 1, "places": [], "missing": [],
        "files": {"metadata.db": [1, 1]},
    }  # fmt: skip
    if field in ("size", "crc"):
        body["files"]["metadata.db"][field == "crc"] = value
    elif field != "crc32c":
        body[field] = value
    text = json.dumps(body)
    crc = value if field == "crc32c" else google_crc32c.value(text.encode())
    (prepared.backup / "backup.json").write_text(json.dumps({"backup": text, "crc32c": crc}))
    name = {"size": "the size of 'metadata.db'", "crc": "the CRC32C of 'metadata.db'"}
    with pytest.raises(BackupError, match=f"{name.get(field, field)} must be a whole number"):
        read_manifest(OsDisk(), str(prepared.backup))


@pytest.mark.parametrize("field", ["store_id", "places", "missing", "files"])
@pytest.mark.parametrize("value", [None, 5, [5], {"a": 5}, [["a"]]])
def test_a_field_of_another_type_is_damage(prepared: Prepared, field: str, value: Any) -> None:
    prepared.backup.mkdir()
    body = {
        "version": 1, "store_id": "s", "mark": 1, "created_ms": 1, "places": [], "missing": [],
        "files": {}, field: value,
    }  # fmt: skip
    text = json.dumps(body)
    sealed = {"backup": text, "crc32c": google_crc32c.value(text.encode())}
    (prepared.backup / "backup.json").write_text(json.dumps(sealed))
    with pytest.raises(BackupError, match="damaged"):
        read_manifest(OsDisk(), str(prepared.backup))


def test_a_huge_manifest_is_refused_unread(prepared: Prepared) -> None:
    prepared.backup.mkdir()
    (prepared.backup / "backup.json").touch()
    os.truncate(prepared.backup / "backup.json", 60 << 30)
    with pytest.raises(BackupError, match="64424509440 bytes, and may have"):
        read_manifest(OsDisk(), str(prepared.backup))


@pytest.mark.parametrize("kind", ["pipe", "directory", "link", "device"])
def test_a_manifest_that_is_no_plain_file_is_refused(prepared: Prepared, kind: str) -> None:
    prepared.backup.mkdir()
    path = prepared.backup / "backup.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        os.symlink("/dev/zero" if kind == "device" else prepared.outside / "keys", path)
    with pytest.raises(BackupError, match="cannot be read"):
        read_manifest(OsDisk(), str(prepared.backup))


def test_a_pipe_in_the_place_of_a_file_is_refused(prepared: Prepared) -> None:
    path = prepared.has("bookie-1/journal/0000000000000001.journal")
    path.unlink()
    os.mkfifo(path)
    prepared.refused("is not as it was written")


def test_a_pipe_in_the_target_is_not_taken_for_nothing(prepared: Prepared) -> None:
    Path(prepared.data.path).mkdir()
    os.mkfifo(prepared.data.metadata_path)
    prepared.has("metadata.db")
    prepared.refused("belongs to a standalone")
