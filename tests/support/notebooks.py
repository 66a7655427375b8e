"""Runs a notebook's code as a user would, from its first cell to its last, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def run_notebook(name: str) -> dict[str, Any]:
    """The names that it leaves behind. An exception has the cell that failed in its notes."""
    notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
    names: dict[str, Any] = {"__name__": name}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            try:
                exec(compile(source, f"{name}.ipynb[{number}]", "exec"), names)
            except BaseException as error:
                error.add_note(f"in cell {number}:\n{source}")
                raise
    return names
