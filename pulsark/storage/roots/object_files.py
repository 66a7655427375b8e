"""``RootFiles`` in object stores, over obstore.

There are no directories, and an object is there as a whole or not at all. ``write_new`` is a put
with ``If-None-Match: *``, of which the store lets one succeed.

Imports obstore: never import it where no root is in an object store.
"""

from __future__ import annotations

import contextlib
import errno
import re
import tempfile
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from pulsark.storage.roots.options import ObjectStoreOptions, read_credentials
from pulsark.storage.roots.root_files import SCHEME
from pulsark.storage.roots.store_pause import DeniedStoreError, ObjectStoreError, StorePause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pulsark.runtime import AppendFile, Clock, Piece, ReadFile

PART_BYTES: Final = 8 << 20
"""Larger files are sent in parts of this size."""

READ_BYTES: Final = 1 << 20
"""Least number of bytes that are asked for at a time: a row group of a file has about as many."""

HEAD_BYTES: Final = 64 << 10
"""The same where a file begins: commits have less, and of a large file that is not needed first."""

OBJECTS_KEPT: Final = 16
"""Open objects of which the piece that was read last is kept: a reader has many files open."""

PUTS: Final = 3
"""How often a put of a new name is tried whose outcome is unknown."""

CREDENTIALS_MINUTES: Final = 5
"""After this time a file with credentials is read again."""

ROOM: Final = 1 << 50
"""Bytes that a store is said to have room for."""


_STATUS: Final = " status code: "
"""What stands before the status in an error's line, which has the object's name, too."""

_times = re.compile(r" in [\d.]+[nµm]?s(?=,| -)|(, after \d+ retries)?, max_retries:.*?(?= -|$)")


class ObjectFiles:
    """All object stores that a process knows; for several threads."""

    def __init__(self, options: ObjectStoreOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._pieces = _Pieces()

    def make_dirs(self, path: str) -> None:
        pass

    def create(self, path: str) -> AppendFile:
        with contextlib.suppress(FileNotFoundError):
            self.size(path)
            raise FileExistsError(errno.EEXIST, "it exists", path)
        return _Upload(partial(self._upload, path))

    def _upload(self, path: str, content: IO[bytes]) -> None:
        with self._asking(path) as (bucket, key):
            obstore.put(bucket.store, key, content, chunk_size=PART_BYTES, max_concurrency=4)

    def open(self, path: str) -> ReadFile:
        with self._asking(path) as (bucket, key):
            try:
                found = obstore.get(bucket.store, key, options={"range": (0, HEAD_BYTES)})
                size, head = found.meta["size"], bytes(found.bytes())
            except BaseError as e:
                if not _said(e).partition(_STATUS)[2].startswith("416"):
                    raise
                size, head = 0, b""  # an empty object has no range at all
        return _Object(size, head, partial(self._range, path), self._pieces)

    def _range(self, path: str, start: int, end: int) -> bytes:
        with self._asking(path) as (bucket, key):
            return bytes(obstore.get_range(bucket.store, key, start=start, end=end))

    def list(self, path: str) -> list[str]:
        with self._asking(path) as (bucket, key):
            found = obstore.list_with_delimiter(bucket.store, key)
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return sorted(path.rpartition("/")[2] for path in paths)

    def size(self, path: str) -> int:
        with self._asking(path) as (bucket, key):
            return int(obstore.head(bucket.store, key)["size"])

    def write_atomic(self, path: str, data: bytes) -> None:
        with self._asking(path) as (bucket, key):
            obstore.put(bucket.store, key, data)

    def write_new(self, path: str, data: bytes) -> None:
        with self._asking(path) as (bucket, key):
            lost: BaseError | None = None
            for _ in range(PUTS):
                try:
                    # Each attempt is one request: who is refused the first one did not write it.
                    obstore.put(bucket.once, key, data, mode="create")
                    return
                except (AlreadyExistsError, PreconditionError):
                    if lost is None:
                        raise
                except (PermissionDeniedError, UnauthenticatedError):
                    raise
                except BaseError as e:
                    lost = e
                # An attempt may have come through. What stands there tells whether one did.
                with contextlib.suppress(FileNotFoundError):
                    if bytes(obstore.get(bucket.store, key).bytes()) != data:
                        raise FileExistsError(errno.EEXIST, "it exists", path)
                    return
            assert lost is not None
            raise lost

    def link(self, path: str, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.size(name)
            raise FileExistsError(errno.EEXIST, "it exists", name)
        with self._asking(path) as (bucket, key):
            obstore.copy(bucket.store, key, _split(name)[1])

    def remove(self, path: str) -> None:
        with self._asking(path) as (bucket, key), contextlib.suppress(FileNotFoundError):
            obstore.delete(bucket.store, key)

    def remove_dir(self, path: str) -> None:
        pass

    def space(self, path: str) -> tuple[int, int]:
        return ROOM, ROOM

    @contextlib.contextmanager
    def _asking(self, path: str) -> Iterator[tuple[_Bucket, str]]:
        """The bucket of a path and its key there; what goes wrong becomes an ``OSError``."""
        name, key = _split(path)
        bucket = self._buckets.get(name)
        if bucket is None:
            pause = StorePause(SCHEME + name, self._clock)
            bucket = self._buckets[name] = _Bucket(name, self._options, pause)
        bucket.pause.check(path)
        try:
            yield bucket, key
        except FileNotFoundError:
            bucket.pause.answered()
            raise FileNotFoundError(errno.ENOENT, "it does not exist", path) from None
        except (AlreadyExistsError, PreconditionError, FileExistsError):
            bucket.pause.answered()
            raise FileExistsError(errno.EEXIST, "it exists", path) from None
        except BaseError as e:
            reason = _said(e)
            bucket.pause.failed(reason)
            if isinstance(e, PermissionDeniedError | UnauthenticatedError):
                raise DeniedStoreError(errno.EACCES, reason, path) from None
            raise ObjectStoreError(errno.EIO, reason, path) from None
        bucket.pause.answered()


class _Bucket:
    def __init__(self, name: str, options: ObjectStoreOptions, pause: StorePause) -> None:
        self.pause = pause
        self.store = _store(name, options, options.objectStoreRetrySeconds)
        self.once = _store(name, options, 0)
        """The same without repetitions, where they would hide what became of a request."""


def _store(name: str, options: ObjectStoreOptions, retry_seconds: int) -> S3Store:
    config: dict[str, Any] = {}
    if options.objectStoreEndpoint:
        config["endpoint"] = options.objectStoreEndpoint
    if options.objectStoreRegion:
        config["region"] = options.objectStoreRegion
    if options.objectStoreCredentialsFile:
        config["credential_provider"] = partial(_credentials, options.objectStoreCredentialsFile)
    seconds = options.objectStoreTimeoutSeconds
    return S3Store(
        name,
        client_options={
            "allow_http": True,
            "timeout": f"{seconds}s",
            "connect_timeout": f"{min(seconds, 5)}s",
        },
        retry_config={
            "max_retries": 10 if retry_seconds else 0,
            "retry_timeout": timedelta(seconds=retry_seconds),
        },
        **config,
    )


def _credentials(path: str) -> dict[str, Any]:
    expires = datetime.now(UTC) + timedelta(minutes=CREDENTIALS_MINUTES)
    return {**read_credentials(path), "expires_at": expires}


class _Upload:
    """A file that is sent when it is synced."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._content = tempfile.SpooledTemporaryFile(max_size=PART_BYTES)  # noqa: SIM115

    def writev(self, buffers: Sequence[Piece]) -> None:
        for buffer in buffers:
            self._content.write(buffer)

    def sync(self) -> None:
        self._content.seek(0)
        self._send(self._content)
        self._content.seek(0, 2)

    def close(self) -> None:
        self._content.close()


class _Pieces:
    """What was read last of the objects that were used last."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: OrderedDict[_Object, tuple[int, bytes]] = OrderedDict()

    def of(self, reader: _Object) -> tuple[int, bytes]:
        """A piece and where it begins; an empty one if there is none."""
        with self._lock:
            return self._found.get(reader, (0, b""))

    def keep(self, reader: _Object, start: int, piece: bytes) -> None:
        with self._lock:
            self._found[reader] = start, piece
            self._found.move_to_end(reader)
            if len(self._found) > OBJECTS_KEPT:
                self._found.popitem(last=False)

    def drop(self, reader: _Object) -> None:
        with self._lock:
            self._found.pop(reader, None)


class _Object:
    """An object that is read piece by piece."""

    def __init__(self, size: int, head: bytes, load: Any, pieces: _Pieces) -> None:
        self._size = size
        self._load = load
        self._pieces = pieces
        pieces.keep(self, 0, head)

    def read(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self._size)
        if end <= offset:
            return b""
        start, piece = self._pieces.of(self)
        if start <= offset and end <= start + len(piece):
            return piece[offset - start : end - start]
        start = max(min(offset, self._size - HEAD_BYTES), 0)
        piece = self._load(start, min(max(end, start + READ_BYTES), self._size))
        self._pieces.keep(self, start, piece)
        return bytes(piece[offset - start : end - start])

    def uncache(self) -> None:
        pass

    def close(self) -> None:
        self._pieces.drop(self)


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.removeprefix(SCHEME).partition("/")
    return bucket, key


def _said(error: Exception) -> str:
    """The first line, without numbers that differ each time, and without what the store sent."""
    line = str(error).partition("\n")[0].partition(": <")[0].rpartition("Error performing ")[2]
    return _times.sub("", line).rstrip(": ")[:300]
