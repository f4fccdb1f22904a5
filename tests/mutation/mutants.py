"""What may be changed in a module: one thing at a time, and never nothing."""

import ast
import copy
from collections.abc import Iterator
from typing import Literal, NamedTuple

Kind = Literal["function", "default", "module", "class"]

_OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_KINDS = (ast.If, ast.IfExp, ast.While, ast.Compare, ast.BoolOp, ast.BinOp, ast.Constant, ast.Return)


class Mutant(NamedTuple):
    line: int
    last_line: int
    """Of what was changed: of a condition its own lines, not those that follow from it."""
    column: int
    """Where it begins in its line, from 1."""
    what: str
    kind: Kind
    """Where it stands: in a function, among its defaults, at a module's level, or in a class beside its methods."""
    tree: ast.Module

    @property
    def source(self) -> str:
        return ast.unparse(self.tree)


def places(tree: ast.Module) -> list[tuple[int, int]]:
    """Where one thing may be changed: a comparison, and/or, a number, a condition, a sign, an answer."""
    return [
        (number, variant)
        for number, node in enumerate(ast.walk(tree))
        if isinstance(node, _KINDS)
        for variant in range(2)
        if _mutate(copy.deepcopy(node), variant)
    ]


def mutant(source: str, number: int, variant: int) -> Mutant:
    tree = ast.parse(source)
    node = next(node for at, node in enumerate(ast.walk(tree)) if at == number)
    kind = next(kind for found, kind in _kinds(tree, "module") if found is node)
    asked = node.test if isinstance(node, (ast.If, ast.IfExp, ast.While)) else node
    line, last_line = getattr(asked, "lineno", 0), getattr(asked, "end_lineno", 0)
    column = getattr(asked, "col_offset", 0) + 1
    what = _mutate(node, variant)
    return Mutant(line, last_line, column, what, kind, ast.fix_missing_locations(tree))


def _kinds(node: ast.AST, kind: Kind) -> Iterator[tuple[ast.AST, Kind]]:
    yield node, kind
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        beside: Kind = kind if kind == "function" else "default"
        yield from _kinds(node.args, beside)
        for decorator in [] if isinstance(node, ast.Lambda) else node.decorator_list:
            yield from _kinds(decorator, kind if kind == "function" else "class")
        for part in node.body if isinstance(node.body, list) else [node.body]:
            yield from _kinds(part, "function")
        return
    inner: Kind = "class" if isinstance(node, ast.ClassDef) and kind != "function" else kind
    for child in ast.iter_child_nodes(node):
        yield from _kinds(child, inner)


def _mutate(node: ast.AST, variant: int) -> str:
    """Change a node; return what was changed, "" where there is no such variant."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        before = ast.unparse(node.test)
        changed = ast.copy_location(ast.Constant(value=bool(variant)), node.test)
        node.test = changed if not isinstance(node, ast.While) or not variant else node.test
        return "" if ast.unparse(node.test) == before else f"condition {before} is {bool(variant)}"
    if variant:
        return ""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OTHER:
        before = ast.unparse(node)
        node.ops[0] = _OTHER[type(node.ops[0])]()
        return f"{before} → {ast.unparse(node)}"
    if isinstance(node, ast.BoolOp):
        before = ast.unparse(node)
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return f"{before} → {ast.unparse(node)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        before = ast.unparse(node)
        node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        return f"{before} → {ast.unparse(node)}"
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        node.value += 1  # type: ignore[operator]
        return f"{node.value - 1} → {node.value}"
    if isinstance(node, ast.Return) and isinstance(node.value, (ast.Compare, ast.Call, ast.Name)):
        before = ast.unparse(node)
        node.value = ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=node.value), node.value)
        return f"{before} → {ast.unparse(node)}"
    return ""
