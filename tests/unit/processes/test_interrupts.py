"""A terminal interrupts all processes of its foreground, and only the first one is to hear it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pulsark.processes import kept_child
from pulsark.storage.table.process import process


@pytest.mark.parametrize(
    ("program", "module", "deaf"),
    [
        (kept_child.PROGRAM, "processes/child", "signal.getsignal(2) is signal.SIG_IGN"),
        (process.PROGRAM, "storage/table/process/worker", "os.getpgid(0) == os.getpid()"),
    ],
)
def test_a_child_does_not_hear_it_even_while_it_loads_its_modules(
    tmp_path: Path, program: tuple[str, ...], module: str, deaf: str
) -> None:
    loaded = tmp_path / "pulsark" / f"{module}.py"
    loaded.parent.mkdir(parents=True)
    for package in list(loaded.relative_to(tmp_path).parents)[:-1]:
        (tmp_path / package / "__init__.py").touch()
    loaded.write_text(f"import os, signal\nprint({deaf})\ndef main(): pass\n")
    said = subprocess.run([*program, "x"], cwd=tmp_path, capture_output=True, env={}, check=True)
    assert said.stdout == b"True\n"
