"""Another user of the machine read the data directory.

Did: started ``pulsark standalone`` as usual, and looked at its files as the user ``nobody``.
Saw: a directory of mode 0755 and ``metadata.db`` of 0644, with the secret that makes a super user.
Expected: nobody but the standalone's user gets at any file; a directory that was open is repaired.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.support.standalone import Standalone


def _open_to_others(top: Path) -> list[str]:
    paths = [top, *top.rglob("*")]
    modes = {path: path.lstat().st_mode for path in paths if not path.is_symlink()}
    return [f"{path} {stat.filemode(mode)}" for path, mode in modes.items() if mode & 0o077]


def test_nobody_else_reads_the_data_directory(tmp_path: Path) -> None:
    standalone = Standalone(tmp_path / "data")
    standalone.start()
    try:
        assert _open_to_others(standalone.data_dir) == []
        standalone.stop()
        for path in (standalone.data_dir, *standalone.data_dir.rglob("*")):
            os.chmod(path, 0o755 if path.is_dir() else 0o644)
        standalone.start()
        assert _open_to_others(standalone.data_dir) == []
        assert standalone.log_path.read_text().count("dataDirectoryAccess=owner") == 1
    finally:
        standalone.stop()
