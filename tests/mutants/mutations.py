"""Small changes of a module, each of which is probably a bug, found in its syntax tree.

A mutation replaces a piece of the text, so a survivor's diff shows just that.
"""

from __future__ import annotations

import ast
from typing import Final, NamedTuple

_COMPARED: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_SIGNS: Final = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_OPERATORS: Final = {ast.Sub: "-", ast.FloorDiv: "//", ast.LShift: "<<", ast.RShift: ">>"}
_SILENT: Final = ("log", "logging", "complaints", "warnings")
"""What only tells people: tests of other things do not look at it."""
_TURN: Final = "await asyncio.sleep(0)"
"""What lets others have a turn changes when things happen, not what: budgets are about that."""
_TOLD: Final = ("__repr__", "__str__", "describe")


class Mutation(NamedTuple):
    """One change: the text from ``start`` to ``end`` becomes ``new``. Places are in bytes."""

    kind: str
    line: int
    start: int
    end: int
    new: str

    def apply(self, source: str) -> str:
        """Return the module with the change."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutations(source: str) -> list[Mutation]:
    """Return all that can be made of a module, in the order of its text."""
    found = _Finder(source)
    found.visit(ast.parse(source))
    return sorted(found.all, key=lambda each: (each.start, each.kind))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self._data = source.encode()
        self._lines = [0]
        for line in self._data.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._functions: list[str] = []
        self.all: list[Mutation] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _TOLD:
            return
        self._functions.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        if _text(node.test) == "TYPE_CHECKING":
            return
        if self._functions:
            if isinstance(node.body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break):
                self._replace("check dropped", node.test, "False")
            elif not node.orelse:
                self._replace("condition dropped", node.test, "True")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if self._functions and len(node.ops) == 1:
            left, right, kind = node.left, node.comparators[0], type(node.ops[0])
            self._between("comparison", left, right, _SIGNS[kind], _COMPARED[kind])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if self._functions:
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                self._between("and or", left, right, old, new)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if self._functions:
            sign = _OPERATORS.get(type(node.op))
            if isinstance(node.right, ast.Constant) and node.right.value == 1:
                self._replace("boundary", node, self._source(node.left))
            elif sign is not None:
                swapped = f"{self._source(node.right)} {sign} {self._source(node.left)}"
                self._replace("operands swapped", node, f"({swapped})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._functions:
            match node.func:
                case ast.Name(id="min"):
                    self._replace("min max", node.func, "max")
                case ast.Name(id="max"):
                    self._replace("min max", node.func, "min")
                case ast.Attribute(attr="pop", value=owner) if node.args:
                    self._replace("stale", node.func, f"{self._source(owner)}.get")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value
        if self._functions and not isinstance(value, ast.Constant | ast.Yield | ast.YieldFrom):
            if _text(value) == _TURN:
                pass
            elif isinstance(value, ast.Await):
                self._replace("await dropped", node, "pass")
            elif isinstance(value, ast.Call) and not self._is_told(value):
                self._replace("call dropped", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if (
            self._functions
            and self._functions[-1] != "__init__"
            and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        ):
            self._replace("assignment dropped", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if self._functions:
            self._replace("assignment dropped", node, "pass")
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        if self._functions:
            self._replace("stale", node, "pass")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if isinstance(node.type, ast.Tuple):
            for each in node.type.elts:
                rest = [self._source(other) for other in node.type.elts if other is not each]
                self._replace("exception narrowed", node.type, f"({', '.join(rest)},)")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        match node.value:
            case ast.Constant(value=bool(value)):
                self._replace("answer", node.value, str(not value))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Pass over errors: their texts are for people."""

    def _is_told(self, call: ast.Call) -> bool:
        words = _text(call.func).split(".")
        return any(word in _SILENT for word in words)

    def _source(self, node: ast.AST) -> str:
        return self._data[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.AST) -> int:
        place: int = self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return place

    def _end(self, node: ast.AST) -> int:
        line, column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        place: int = self._lines[line - 1] + column
        return place

    def _replace(self, kind: str, node: ast.AST, new: str) -> None:
        line = node.lineno  # type: ignore[attr-defined]
        self.all.append(Mutation(kind, line, self._start(node), self._end(node), new))

    def _between(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Replace an operator, which has no place of its own in the tree."""
        start, end = self._end(left), self._start(right)
        at = self._data[start:end].decode().find(old)
        if at >= 0:
            begin = start + at
            line = self._data[:begin].count(b"\n") + 1
            self.all.append(Mutation(kind, line, begin, begin + len(old), new))


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
