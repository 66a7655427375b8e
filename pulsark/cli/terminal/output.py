"""Output: data to stdout, as JSON or as text that is readable at 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pulsark.cli.terminal.streams import plain_stdout
from pulsark.log_format import escaped


def print_json(value: Any) -> None:
    """One JSON value, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """One JSON value on one line, out at once: another program may wait for it."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_table(
    columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[object]], title: str = ""
) -> None:
    """A table; a column is its heading and whether it holds numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(escaped(title)) if title else None,
        title_justify="left",
        title_style="bold",
        box=None,
    )
    for heading, numeric in columns:
        table.add_column(
            heading, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric
        )
    for row in rows:
        table.add_row(*(Text(escaped(str(cell))) for cell in row))
    Console(file=plain_stdout()).print(table)


def human_size(size: float) -> str:
    """Bytes with a binary unit, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def human_rate(rate: float) -> str:
    """A rate per second without needless digits."""
    return f"{rate:,.1f}" if rate < 1000 else f"{rate:,.0f}"
