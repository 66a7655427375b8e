"""The files of storage roots in Spark's processes, which know stores by their environment."""

from __future__ import annotations

import os
from functools import cache
from typing import IO, TYPE_CHECKING, Any, cast

from pulsark.storage.roots.any_root import files_here
from pulsark.storage.roots.disk_source import DiskSource
from pulsark.storage.roots.root_files import in_object_store

if TYPE_CHECKING:
    from pulsark.storage.roots.root_files import RootFiles

HOW_TO_REACH = (
    "its process needs credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "PULSARK_objectStoreCredentialsFile, and PULSARK_objectStoreEndpoint if the broker has one"
)


@cache
def task_files() -> RootFiles:
    """Those of any root; one object for a process, whose tasks follow each other."""
    return files_here(os.environ)


def for_pyarrow(path: str) -> Any:
    """A file as pyarrow opens it: by its path, or as an open one, which pyarrow closes.

    Raises ``OSError``.
    """
    if not in_object_store(path):
        return path
    files = task_files()
    return cast("IO[bytes]", DiskSource(files.open(path), files.size(path)))
