"""Writes the table of ``docs/clients.md``: which clients were run against Pulsark.

::

    python -m tests.docs.clients --write

``make test-clients`` notes in ``tests/clients/ran.toml`` what it ran, and then calls this.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping

from tests.clients.pinned import PINNED, ROOT, Ran, read_record

PAGE = ROOT / "docs" / "clients.md"
BEGIN = "<!-- written by make test-clients -->\n"
END = "<!-- end -->\n"


def table(rows: Mapping[str, Ran]) -> str:
    """A line for each client."""
    lines = ["| Client | Version | Run against Pulsark | Tests |", "|---|---|---|---|"]
    for key, pin in PINNED.items():
        if key in rows:
            row = rows[key]
            tests = ", ".join(f"[{name}](../tests/clients/{name})" for name in row.files)
            lines.append(f"| {pin.name} | {row.version} | {row.pulsark} | {tests} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, rows: Mapping[str, Ran]) -> str:
    """A page with a new table."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{table(rows)}{END}{tail}"


def written_table(page: str) -> str:
    """The table of a page."""
    found = re.search(f"{BEGIN}(.*?){END}", page, re.DOTALL)
    return found.group(1) if found else ""


def problems(rows: Mapping[str, Ran], page: str) -> list[str]:
    """Where the page, what was run and what is pinned do not agree."""
    run = "run: make test-clients"
    found = []
    for key, pin in PINNED.items():
        if key not in rows:
            found.append(f"{key} {pin.version} was never run; {run}")
        elif rows[key].version != pin.version:
            found.append(f"{key}: {rows[key].version} was run, {pin.version} is pinned; {run}")
    found += [f"{key} is not pinned any more" for key in rows.keys() - PINNED.keys()]
    if written_table(page) != table(rows):
        found.append("docs/clients.md has another table; run: python -m tests.docs.clients --write")
    return found


def main() -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description="The table of docs/clients.md")
    parser.add_argument("--write", action="store_true", help="write it; else only check it")
    rows, page = read_record(), PAGE.read_text()
    if parser.parse_args().write:
        PAGE.write_text(with_table(page, rows))
        return 0
    found = problems(rows, page)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
