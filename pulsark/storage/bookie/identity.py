"""Which bookie the directories belong to.

Both directories hold a ``BOOKIE`` file with the same random instance id, and with the identity of
the metadata store that knows what the bookie's ledgers are. A bookie that lost its
journal, or found another's, must not answer for ledgers under its old name: it would have
forgotten fences and acknowledged entries, and would say "no such entry" for them.

The ledger directory's file is written last, after the first journal segment is durable. So if
it is there, journal segments must be there too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pulsark.errors import ConfigError
from pulsark.storage.bookie.journal_format import segment_id_of

if TYPE_CHECKING:
    from pulsark.runtime import Disk, Runtime

IDENTITY_NAME = "BOOKIE"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class Identity:
    """Content of a ``BOOKIE`` file."""

    bookie_id: str
    instance_id: bytes
    store_id: str = ""
    """The metadata store's identity; version 1 did not have it."""

    def encode(self) -> bytes:
        """JSON, one line."""
        value = {
            "version": _VERSION,
            "bookieId": self.bookie_id,
            "instanceId": self.instance_id.hex(),
            "storeId": self.store_id,
        }
        return json.dumps(value).encode() + b"\n"


def load_identity(disk: Disk, directory: str) -> Identity | None:
    """The identity that is noted in a directory; ``ConfigError`` if it cannot be read."""
    path = f"{directory}/{IDENTITY_NAME}"
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        value = json.loads(file.read(0, 4096))
        if value["version"] > _VERSION:
            raise ConfigError(
                f"{path} has version {value['version']}, this program knows up to {_VERSION}"
            )
        instance_id = bytes.fromhex(value["instanceId"])
        if len(instance_id) != 16:
            raise ValueError("instanceId must have 16 bytes")
        store_id = value["storeId"] if value["version"] > 1 else ""
        return Identity(str(value["bookieId"]), instance_id, str(store_id))
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{path} is damaged ({e}): restore it from the other directory") from e
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class Commission:
    """An identity, and whether this bookie has ever been in service."""

    identity: Identity
    in_service: bool


def check_identity(
    runtime: Runtime, bookie_id: str, journal_dir: str, ledger_dir: str, store_id: str = ""
) -> Commission:
    """Make the directories and settle whose they are; ``ConfigError`` if they do not fit.

    Blocking. A new bookie gets its journal's file here, and the ledger directory's by
    ``commission`` once its journal exists. One that is there becomes the bookie of the metadata
    store ``store_id``, if one is given: the caller has asked whether it may.
    """
    disk = runtime.disk
    if journal_dir == ledger_dir:
        raise ConfigError(f"journal and ledger directory must differ: both are {journal_dir}")
    disk.make_dirs(journal_dir)
    disk.make_dirs(ledger_dir)
    for directory in (journal_dir, ledger_dir):
        disk.sync_names(directory)  # what is believed below must not go with the power
    in_journal, in_ledgers = load_identity(disk, journal_dir), load_identity(disk, ledger_dir)
    has_segments = any(segment_id_of(name) is not None for name in disk.list(journal_dir))
    for identity, directory in ((in_journal, journal_dir), (in_ledgers, ledger_dir)):
        if identity is not None and identity.bookie_id != bookie_id:
            raise ConfigError(
                f"{directory} belongs to bookie {identity.bookie_id}, not to {bookie_id}"
            )
    if in_ledgers is not None:
        in_journal = _journals(in_ledgers, in_journal, has_segments, journal_dir, ledger_dir)
        if store_id and (in_ledgers.store_id, in_journal.store_id) != (store_id, store_id):
            in_ledgers = replace(in_ledgers, store_id=store_id)
            for directory in (journal_dir, ledger_dir):
                disk.write_atomic(f"{directory}/{IDENTITY_NAME}", in_ledgers.encode())
        return Commission(in_ledgers, in_service=True)
    if in_journal is None or in_journal.store_id != store_id:
        if in_journal is None and has_segments:
            raise ConfigError(
                f"{journal_dir} holds journal segments but no {IDENTITY_NAME} file: "
                "restore that file, or empty the directory to start a new bookie"
            )
        instance_id = in_journal.instance_id if in_journal else runtime.rng.randbytes(16)
        in_journal = Identity(bookie_id, instance_id, store_id)
        disk.write_atomic(f"{journal_dir}/{IDENTITY_NAME}", in_journal.encode())
    return Commission(in_journal, in_service=False)


def _journals(
    known: Identity, found: Identity | None, has_segments: bool, journal_dir: str, ledger_dir: str
) -> Identity:
    """The identity in the journal's directory, if it is the one that is known."""
    if found is None or not has_segments:
        what = "no journal" if not has_segments else f"no {IDENTITY_NAME} file"
        raise ConfigError(
            f"bookie {known.bookie_id} is known in {ledger_dir} but {journal_dir} holds {what}: "
            "mount the right directory; if the journal is lost, empty both and start under a "
            "new name so that its ledgers are copied from their other bookies"
        )
    if found.instance_id != known.instance_id:
        raise ConfigError(
            f"{journal_dir} and {ledger_dir} belong to two bookies "
            f"({found.instance_id.hex()} and {known.instance_id.hex()})"
        )
    return found


def commission(disk: Disk, identity: Identity, ledger_dir: str) -> None:
    """The journal exists: note in the ledger directory that this bookie is in service."""
    disk.write_atomic(f"{ledger_dir}/{IDENTITY_NAME}", identity.encode())
