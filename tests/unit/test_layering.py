"""Imports go in one direction, and the broker stays light."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "pulsark"
BASE = {"runtime", "errors", "limits", "config"}
ALLOWED = {
    "wire": BASE,
    "metadata": BASE | {"wire"},
    "storage": BASE | {"wire", "metadata", "schemas"},
    "schemas": BASE,
    "dispatch": BASE | {"wire", "metadata", "storage", "schemas"},
    "admin": BASE | {"wire", "metadata", "storage", "schemas", "dispatch"},
    "datasource": BASE | {"wire", "storage", "schemas"},
    "jobs": BASE | {"wire", "storage", "schemas", "datasource"},
}
COMPOSITION = {"dispatch/standalone.py"}
"""Files that wire the parts of a process together and may see all of them."""


OF_DATASOURCE = (
    "pulsark.storage.rows",
    "pulsark.storage.compacted_entry",
    "pulsark.storage.position",
    "pulsark.storage.table.bulk_writer",
    "pulsark.storage.table.staging",
)
"""What the data source may use of the storage."""

ARROW = (
    "storage/rows/",
    "storage/table/seal.py",
    "storage/table/reader.py",
    "storage/table/bulk_writer.py",
)
"""Modules that are for Arrow, and are themselves imported at first use."""


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {n for n in names if n.startswith("pulsark.")}


def imported_at_top(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_a_layer_imports_only_what_is_below_it(layer: str) -> None:
    wrong = []
    for path in sorted((ROOT / layer).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        if where in COMPOSITION:
            continue
        for name in imported(path):
            target = name.split(".")[1]
            is_module = (ROOT / target).is_dir() or (ROOT / f"{target}.py").exists()
            if is_module and target != layer and target not in ALLOWED[layer]:
                wrong.append(f"{where} imports {name}")
            if (
                layer == "datasource"
                and target == "storage"
                and not name.startswith(OF_DATASOURCE)
                and name != "pulsark.storage"
            ):
                wrong.append(f"{where} imports {name}")
    assert wrong == []


def test_heavy_modules_are_never_imported_at_the_top_of_broker_modules() -> None:
    heavy = {"pyspark", "pyarrow", "fastapi", "uvicorn", "deltalake", "numpy", "pandas", "rich"}
    lazy = {"admin", "datasource", "demo"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in lazy
        and not path.relative_to(ROOT).as_posix().startswith(ARROW)
        and not path.name.startswith("flight_server")
        for name in imported_at_top(path)
        if name.split(".")[0] in heavy
    ]
    assert wrong == []


def test_each_public_module_says_what_it_is() -> None:
    missing = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.rglob("*.py"))
        if not path.name.endswith("_pb2.py")
        and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert missing == []
