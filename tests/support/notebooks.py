"""Runs a notebook's code as a user would, from its first cell to its last, in this process."""

from __future__ import annotations

import ast
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
                _run_cell(source, f"{name}.ipynb[{number}]", names)
            except BaseException as error:
                error.add_note(f"in cell {number}:\n{source}")
                raise
    return names


def _run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    """As Jupyter does it: the value of an expression at the end is shown."""
    body = ast.parse(source, name).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        if value is not None:
            print(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
