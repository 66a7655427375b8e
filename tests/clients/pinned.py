"""The official clients that the tests of this folder run, in the versions that are pinned.

A test says by a marker which it runs: ``@pytest.mark.client("java-v5")``. ``make test-clients``
writes to ``ran.toml`` which were run, and ``tests/docs/clients.py`` puts that into the docs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pulsark

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "ran.toml"
HEADER = (
    "# Written by `make test-clients`: the clients that were run, and the version of Pulsark.\n"
)


@dataclass(frozen=True)
class Pin:
    """One client, and where its version is pinned."""

    name: str
    path: Path
    pattern: str

    @property
    def version(self) -> str:
        """The version that is pinned."""
        found = re.search(self.pattern, self.path.read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.path} has no {self.pattern}")
        return found.group(1)


def _jar(name: str, path: str, artifact: str) -> Pin:
    return Pin(name, ROOT / path, rf"^org\.apache\.pulsar:{artifact}:(.+)$")


PINNED = {
    "python": Pin("Python", ROOT / "constraints.txt", r"^pulsar-client==(.+)$"),
    "java-4.0": _jar("Java", "benchmarks/load/pulsar-client-4.0.7.lock", "pulsar-client"),
    "java-4.2": _jar("Java", "tests/clients/java/pulsar-client-4.2.4.lock", "pulsar-client"),
    "java-v5": _jar(
        "Java, V5 API", "benchmarks/load/pulsar-client-v5-5.0.0-M1.lock", "pulsar-client-v5"
    ),
    "java-admin": _jar(
        "Java, admin API",
        "tests/clients/java/pulsar-client-admin-4.0.7.lock",
        "pulsar-client-admin",
    ),
    "go": Pin(
        "Go", HERE / "go" / "go.mod", r"^require github\.com/apache/pulsar-client-go v(\S+)$"
    ),
}
"""By the name that markers have."""


@dataclass(frozen=True)
class Ran:
    """A client that was run without a failure."""

    version: str
    pulsark: str
    """The version of Pulsark that it was run against."""
    files: tuple[str, ...]
    """The tests that ran it, in this folder."""


def read_record(path: Path = RECORD) -> dict[str, Ran]:
    """What ``write_record`` wrote; nothing without the file."""
    if not path.exists():
        return {}
    rows = tomllib.loads(path.read_text())
    return {
        key: Ran(row["version"], row["pulsark"], tuple(row["files"])) for key, row in rows.items()
    }


def write_record(passed: dict[str, Iterable[str]], path: Path = RECORD) -> None:
    """Note the files in which each client was run now, beside those noted for its version."""
    rows = read_record(path)
    for key, files in passed.items():
        version, before = PINNED[key].version, rows.get(key)
        known = {name for name in before.files if (HERE / name).exists()} if before else set()
        if before is None or (before.version, before.pulsark) != (version, pulsark.__version__):
            known = set()
        rows[key] = Ran(version, pulsark.__version__, tuple(sorted(known | set(files))))
    lines = [HEADER]
    for key, row in sorted(rows.items()):
        names = "".join(f'  "{name}",\n' for name in row.files)
        lines.append(
            f'\n["{key}"]\nversion = "{row.version}"\npulsark = "{row.pulsark}"\n'
            f"files = [\n{names}]\n"
        )
    path.write_text("".join(lines))
