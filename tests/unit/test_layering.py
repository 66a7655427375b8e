"""Rooms are in one order, imports go down only, and the broker stays light."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2] / "pulsark"
BASE = (
    "errors",
    "limits",
    "patterns",
    "private_files",
    "file_locks",
    "runtime",
    "tasks",
    "http_answer",
    "log_budget",
    "log_format",
    "config",
)
"""What everything may import."""
ROOMS = (
    # What is spoken and what is kept, without sockets and disks.
    "wire",
    "wire.bookkeeper",
    "schemas",
    "rows.arrow",
    "rows.values",
    "rows",
    "metadata",
    "metadata.zookeeper",
    "metadata.etcd",
    "security",
    "rates",
    "security.audit",
    # Storage, from one disk to a topic's table.
    "storage.proto",
    "storage",
    "storage.roots",
    "storage.bookie",
    "storage.remote_bookie",
    "storage.ledger",
    "storage.bookkeeper",
    "storage.cursor",
    "storage.managed_ledger",
    "storage.delayed",
    "storage.table.files",
    "storage.table.log",
    "storage.table.process",
    "storage.table.staging",
    "storage.table",
    "storage.backup",
    # The broker.
    "dispatch.loop",
    "dispatch.policies",
    "dispatch.model",
    "dispatch.brokers",
    "dispatch.peers",
    "dispatch.producer",
    "dispatch.subscription",
    "dispatch.topic",
    "dispatch.topics",
    "dispatch.audit",
    "dispatch.scalable",
    "dispatch.tables",
    "dispatch.upkeep",
    "dispatch.stats",
    "dispatch.spark",
    "dispatch",
    "dispatch.handover",
    "dispatch.connection",
    "admin.http",
    "admin.pulsar",
    "admin.spark",
    "admin",
    "admin_client",
    # Spark's side.
    "datasource.options",
    "datasource.admin",
    "datasource.plan",
    "datasource.read",
    "datasource.write",
    "datasource",
    "jobs",
    "notebook",
    # What people start.
    "processes",
    "standalone",
    "cli.terminal",
    "cli.admin",
    "cli.doctor",
    "cli",
    "__main__",
)
"""Bottom up: a room imports rooms above it in this list, never those below."""

APART = {
    "datasource": (
        "wire",
        "schemas",
        "rows",
        "storage.roots",
        "storage.table.staging",
        "admin_client",
    ),
    "jobs": (
        "wire",
        "schemas",
        "rows",
        "storage.roots",
        "storage.table",
        "admin_client",
        "datasource",
    ),
    "storage": ("wire", "schemas", "rows", "metadata"),
    "dispatch": ("wire", "schemas", "metadata", "security", "rates", "storage"),
}
"""Of these folders each room imports only what is named here, and its own folder."""

HEAVY = {
    "pyspark",
    "pyarrow",
    "fastapi",
    "uvicorn",
    "deltalake",
    "numpy",
    "obstore",
    "pandas",
    "rich",
    "bcrypt",
    "cryptography",
    "jwt",
    "passlib",
}
LAZY = (
    "security.certificates",
    "security.openid",
    "security.passwords",
    "security.tokens",
    "admin",
    "datasource",
    "rows",
    "storage.roots.object_files",
    "storage.table.files.seal",
    "storage.table.files.statistics",
    "storage.table.process.reader",
    "storage.table.staging.bulk_writer",
    "storage.table.staging.staged_merge",
    "dispatch.spark.flight_login",
    "dispatch.spark.flight_server",
    "cli.tokens",
)
"""Modules that are themselves imported at first use."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    return {name_of(p): p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"}


def room_of(module: str) -> str:
    """The folder of a module; a module at the top, and a package's own ``__init__``, is a room."""
    if modules()[module].name == "__init__.py":
        return module
    return module.rpartition(".")[0] or module


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@cache
def imported(module: str, *, for_types: bool = False) -> frozenset[str]:
    """Modules of the project that a module imports, anywhere in it; those for types if asked."""
    return frozenset(_imported(module, for_types=for_types))


def _imported(module: str, *, for_types: bool) -> Iterator[str]:
    tree = ast.parse(modules()[module].read_text())
    typing: set[ast.AST] = set()
    if not for_types:
        typing = {n for top in ast.walk(tree) if is_type_checking(top) for n in ast.walk(top)}
    for node in ast.walk(tree):
        if node in typing:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [n if n.removeprefix("pulsark.") in modules() else node.module for n in whole]
        else:
            continue
        for name in names:
            target = name.removeprefix("pulsark.")
            if name.startswith("pulsark.") and target in modules() and target != module:
                yield target


def is_within(room: str, folders: tuple[str, ...]) -> bool:
    return room.startswith(tuple(f"{folder}." for folder in folders)) or room in folders


def test_every_room_has_a_place_in_the_order() -> None:
    rooms = {room_of(module) for module in modules()} - {""}
    assert rooms - set(ROOMS) - {r for r in rooms if is_within(r, BASE)} == set()
    assert set(ROOMS) - rooms == set()


def test_rooms_import_only_what_is_below_them() -> None:
    """Also for types: a room names nothing above it."""
    wrong = []
    for module in modules():
        room = room_of(module)
        if not room:
            continue
        for target in imported(module, for_types=True):
            theirs = room_of(target)
            if theirs == room or is_within(theirs, BASE):
                continue
            if is_within(room, BASE) or ROOMS.index(theirs) > ROOMS.index(room):
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_files_of_a_room_that_know_each_other_are_few() -> None:
    """Also where one knows another only by its type; eight is a sentence, more is a knot."""
    assert [circle for circle in circles() if len(circle) > 8] == []


def circles() -> list[set[str]]:
    """Modules that reach each other by imports, together."""
    reached = {module: reach(module) for module in modules()}
    found = {frozenset(m for m in reached[each] if each in reached[m]) for each in reached}
    return [set(circle) for circle in found if len(circle) > 1]


def reach(module: str) -> set[str]:
    seen, new = set[str](), [module]
    while new:
        fresh = set(imported(new.pop(), for_types=True)) - seen
        seen |= fresh
        new += fresh
    return seen


LONG_FOR_A_REASON: dict[str, str] = {}
"""Modules of more than 900 lines, and why each of them stays whole."""


def test_long_modules_give_a_reason() -> None:
    long = {
        module
        for module, path in modules().items()
        if not path.name.endswith("_pb2.py") and len(path.read_text().splitlines()) > 900
    }
    assert long == set(LONG_FOR_A_REASON)


def test_folders_that_stand_apart_import_only_what_is_named() -> None:
    wrong = []
    for module in modules():
        room = room_of(module)
        folder = room.partition(".")[0]
        for target in imported(module) if folder in APART else ():
            theirs = room_of(target)
            if not is_within(theirs, (*BASE, folder, *APART[folder])):
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_heavy_modules_are_never_imported_at_the_top_of_broker_modules() -> None:
    wrong = []
    for module, path in modules().items():
        if is_within(module, LAZY):
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            wrong += [f"{module} imports {n}" for n in names if n.split(".")[0] in HEAVY]
    assert wrong == []


def test_each_module_says_what_it_is() -> None:
    assert [
        module
        for module, path in modules().items()
        if not path.name.endswith("_pb2.py")
        and ast.get_docstring(ast.parse(path.read_text())) is None
    ] == []
