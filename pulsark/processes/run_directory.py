"""``DATA/run``: the Unix sockets between the processes of a standalone.

Only their user may open it. The path of a Unix socket must be short, and the path of a data
directory may be long, so the address of a socket goes through a descriptor of the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pulsark.storage.backup.data_dir import DataDir

_PATH_BYTES_MAX: Final = 100
_LIVING: Final = "PROCESSES"


class RunDirectory:
    """The run directory of one data directory. It is created if missing."""

    def __init__(self, data: DataDir) -> None:
        self.path = os.path.join(data.path, "run")
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        os.chmod(self.path, 0o700)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._living = os.open(
            os.path.join(self.path, _LIVING), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def close(self) -> None:
        """End the use of all addresses."""
        os.close(self._living)
        os.close(self._descriptor)

    def address_of_bookie(self, bookie_id: str) -> str:
        """The socket of a bookie."""
        return self._address(bookie_id)

    def address_of_broker(self, port: int) -> str:
        """The socket on which a broker receives clients. ``port`` is the broker's own port."""
        return self._address(f"broker-{port}")

    def _address(self, name: str) -> str:
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
            return path
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def live(self) -> None:
        """Mark this process as a supervisor's child until it ends. Never waits."""
        fcntl.flock(self._living, fcntl.LOCK_SH)

    def clear(self) -> bool:
        """Remove the sockets of children that were killed; nothing, and ``False``, if any lives."""
        try:
            fcntl.flock(self._living, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            for found in os.scandir(self._descriptor):
                if stat.S_ISSOCK(found.stat(follow_symlinks=False).st_mode):
                    os.unlink(found.name, dir_fd=self._descriptor)
        finally:
            fcntl.flock(self._living, fcntl.LOCK_UN)
        return True
