"""``DATA/run``: the sockets by which the processes of a standalone find each other.

Nobody but their user may open it. The path of a Unix socket has to be short, and that of a data
directory may be long: then the sockets are reached by a descriptor of their directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pulsark.storage.backup.data_dir import DataDir

_PATH_BYTES_MAX: Final = 100
_LIVING: Final = "PROCESSES"


class RunDirectory:
    """That of one data directory, made if there is none. For the life of a process."""

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
        """The addresses are of no use any more."""
        os.close(self._living)
        os.close(self._descriptor)

    def address_of_bookie(self, bookie_id: str) -> str:
        """Where a bookie is served."""
        return self._address(bookie_id)

    def address_of_broker(self, port: int) -> str:
        """Where the broker with this port for clients, which is its alone, is given clients."""
        return self._address(f"broker-{port}")

    def _address(self, name: str) -> str:
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
            return path
        return f"/proc/self/fd/{self._descriptor}/{name}"

    def live(self) -> None:
        """This process is a child of a supervisor, until it ends. Blocks for no time at all."""
        fcntl.flock(self._living, fcntl.LOCK_SH)

    def is_deserted(self) -> bool:
        """Whether the children of a supervisor that is gone have all ended."""
        try:
            fcntl.flock(self._living, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._living, fcntl.LOCK_UN)
        return True
