"""Keys and other secrets from the location that a setting names, reloaded when they change.

A location is ``file:///path``, ``data:[type][;base64],...``, the path of an existing file, or
base64. The contents of a file are used as they are, including a newline at the end.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
import stat
from typing import TYPE_CHECKING, Generic, TypeVar
from urllib.parse import unquote, unquote_to_bytes

from pulsark.errors import ConfigError
from pulsark.security.limits import KEY_FILE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[int, int, int]


class Kept(Generic[T]):
    """The parsed secret of a setting, reloaded when its file changes.

    While the file is missing or half written, the last good version stays in use.
    """

    def __init__(self, setting: str, location: str, parse: Callable[[bytes], T]) -> None:
        """``ConfigError`` if the location is empty or ``parse`` raises one."""
        self._setting = setting
        self._parse = parse
        self._path = path_of(location)
        self.name = "" if self._path is None else os.path.splitext(os.path.basename(self._path))[0]
        """The file's name without its extension."""
        self._stamp = self._look()
        self._complaint = ""
        self._told: Callable[[str], None] = lambda setting: None
        data = _inline(setting, location) if self._path is None else self._read(self._path)
        self._value = parse(data)

    @property
    def value(self) -> T:
        """The current value."""
        if self._path is None:
            return self._value
        stamp = self._look()
        if stamp is not None and stamp != self._stamp:
            try:
                data = self._read(self._path)
                self._stamp = stamp  # what cannot be read, for want of descriptors, is tried again
                self._value = self._parse(data)
            except ConfigError as error:
                if str(error) != self._complaint:
                    log.warning("%s; its last good version stays in use", error)
                self._complaint = str(error)
            else:
                level = logging.WARNING if self._complaint else logging.INFO
                self._complaint = ""
                log.log(level, "%s: reloaded", self._setting)
                self._told(self._setting)
        return self._value

    def tell(self, told: Callable[[str], None]) -> None:
        """Call a listener with the name of the setting after each reload."""
        self._told = told

    def _look(self) -> Stamp | None:
        if self._path is None:
            return None
        try:
            return stamp_of(self._path)
        except (OSError, ValueError):
            return None

    def _read(self, path: str) -> bytes:
        return read_file(self._setting, path)


def stamp_of(path: str) -> Stamp:
    """Changes when the file or the target of its symbolic link does. ``OSError`` if it is gone."""
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def is_open_to_all(path: str) -> bool:
    """Whether every user of this machine can read an existing file."""
    try:
        return bool(os.stat(path).st_mode & stat.S_IRWXO)
    except OSError:
        return False


def read_location(setting: str, location: str) -> bytes:
    """The bytes at a location. Raises ``ConfigError``, which never shows secret data."""
    path = path_of(location)
    return _inline(setting, location) if path is None else read_file(setting, path)


def path_of(location: str) -> str | None:
    """The file that a location names; ``None`` if the location contains the data itself."""
    if location.startswith("file:"):
        return unquote(re.sub("^file:(//)?", "", location))
    if not location.startswith("data:") and os.path.exists(location):
        return location
    return None


def read_file(setting: str, path: str) -> bytes:
    """The bytes of a small file. Raises ``ConfigError``."""
    try:
        with open(path, "rb") as file:
            data = file.read(KEY_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a path may have a zero in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{setting}: {path[:200]} cannot be read: {reason}") from None
    if len(data) > KEY_FILE_BYTES_MAX:
        raise ConfigError(f"{setting}: {path} is larger than {KEY_FILE_BYTES_MAX} bytes")
    return data


def _inline(setting: str, location: str) -> bytes:
    if location.startswith("data:"):
        head, comma, data = location.removeprefix("data:").partition(",")
        if not comma:
            raise ConfigError(f"{setting}: a data: URL is data:;base64,DATA or data:,TEXT")
        if not head.endswith(";base64"):
            return unquote_to_bytes(data)
        location = unquote(data)
    try:
        return base64.b64decode(location.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(
            f"{setting}: neither a file that exists, nor file:///PATH, data:;base64,DATA or base64"
        ) from None
