"""What the names of a script stand for: what is assigned in their scope, what calls hand to parameters, what functions
return. One step at a time, and only where the script itself tells it."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

Function = ast.FunctionDef | ast.AsyncFunctionDef
Origins = list["ast.expr | None"]  # None: something that nobody sees here
_LOCAL: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Calls that give back what they are given, as another type.
_SAME: Final = frozenset(("int", "str", "bool", "list", "tuple"))
_START: Final = frozenset(("spawn", "start_processes"))  # torch.multiprocessing: the first argument is the rank
_THE_RANK: Final = ast.Name("rank", ast.Load())


class Values:
    """Of one script. Names that two functions or classes have in common are kept apart by their scopes."""

    def __init__(self, tree: ast.Module) -> None:
        self._scopes: dict[int, ast.AST | None] = {}  # of an expression: the function that it stands in
        self._around: dict[int, ast.AST | None] = {}  # of a function: the one around it
        self._bound: dict[tuple[int, str], Origins] = defaultdict(list)
        self._attributes: dict[str, Origins] = defaultdict(list)
        self._functions: dict[str, list[Function]] = defaultdict(list)
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._handed: dict[str, list[list[ast.expr | None]]] = defaultdict(list)  # to what other processes run
        self._methods: set[int] = set()
        self._read(tree, None)

    def of(self, node: ast.expr) -> Origins | None:
        """What an expression may stand for, one step back; None where nothing in the script tells."""
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(node, ast.Attribute):
            found = self._attributes.get(ast.unparse(node))
            return found if found else self._returned(node.attr, is_property=True)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, ast.NamedExpr):
            return [node.value]
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return list(node.values)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._item(node.value, node.slice.value)
        return None

    def function_of(self, call: ast.Call) -> Function | None:
        """The script's own function that a call runs, where one alone has the name."""
        name = _called(call)
        found = self._functions.get(name, [])
        return found[0] if name and len(found) == 1 else None

    def _of_name(self, node: ast.Name) -> Origins | None:
        scope = self._scopes.get(id(node))
        while scope is not None:
            if found := self._bound.get((id(scope), node.id)):
                return found
            if isinstance(scope, Function) and node.id in (names := _parameters(scope)):
                return self._given(scope, names.index(node.id), node.id)
            if isinstance(scope, ast.Lambda) and node.id in [one.arg for one in scope.args.args]:
                return None
            scope = self._around.get(id(scope))
        return self._bound.get((0, node.id)) or None

    def _given(self, function: Function, place: int, name: str) -> Origins | None:
        """What a parameter is given by the script's calls; its default counts where one leaves it out."""
        found: Origins = [row[place] if place < len(row) else None for row in self._handed.get(function.name, ())]
        calls = self._calls.get(function.name, [])
        if len(self._functions[function.name]) > 1 or not (calls or found):
            return None
        shift = 1 if id(function) in self._methods else 0
        defaults = dict(zip(_parameters(function)[::-1], function.args.defaults[::-1], strict=False))
        for call in calls:
            by_name = next((one.value for one in call.keywords if one.arg == name), None)
            at = place - shift
            given = by_name or (call.args[at] if 0 <= at < len(call.args) else defaults.get(name))
            found.append(None if isinstance(given, ast.Starred) else given)
        return found

    def _of_call(self, node: ast.Call) -> Origins | None:
        if isinstance(node.func, ast.Name) and node.func.id in _SAME and len(node.args) == 1:
            return [node.args[0]]
        if isinstance(node.func, ast.Name):
            made = self._of_name(node.func) or []
            if len(made) == 1 and isinstance(made[0], ast.Lambda):
                return [made[0].body]
        return self._returned(_called(node))

    def _returned(self, name: str, *, is_property: bool = False) -> Origins | None:
        found = self._functions.get(name, [])
        if len(found) != 1 or (is_property and not _is_property(found[0])):
            return None
        return [one.value for one in _of_function(found[0]) if isinstance(one, ast.Return) and one.value] or None

    def _item(self, node: ast.expr, place: object) -> Origins | None:
        """An element of what a call or a name gives as a tuple."""
        if not isinstance(place, int):
            return None
        found = [node] if isinstance(node, (ast.Tuple, ast.List)) else self.of(node)
        if not found:
            return None
        rows = [one.elts if isinstance(one, (ast.Tuple, ast.List)) else [] for one in found]
        return [row[place] if -len(row) <= place < len(row) else None for row in rows]

    def _read(self, node: ast.AST, scope: ast.AST | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._scopes[id(child)] = scope
            inner = scope
            if isinstance(child, _LOCAL):
                self._around[id(child)] = scope
                inner = child
            if isinstance(child, Function):
                self._functions[child.name].append(child)
                if isinstance(node, ast.ClassDef) and not _has_decorator(child, "staticmethod"):
                    self._methods.add(id(child))
            elif isinstance(child, ast.Call):
                self._calls[_called(child)].append(child)
                self._process(child)
            self._bind(child, scope)
            self._read(child, inner)

    def _process(self, call: ast.Call) -> None:
        """`mp.spawn(run, args=(a, b))` and `Process(target=run, args=(rank, a))`."""
        name = _called(call)
        words = {one.arg: one.value for one in call.keywords}
        given = words.get("args")
        row: list[ast.expr | None] = list(given.elts) if isinstance(given, (ast.Tuple, ast.List)) else []
        if name in _START:
            target: ast.expr | None = call.args[0] if call.args else words.get("fn")
            row = [_THE_RANK, *row]
        elif name == "Process":
            target = words.get("target")
        else:
            return
        if isinstance(target, ast.Name):
            self._handed[target.id].append(row)

    def _bind(self, node: ast.AST, scope: ast.AST | None) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._set(target, node.value, scope)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._set(node.target, node.value, scope)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.AugAssign)):
            self._set(node.target, None, scope)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._set(node.optional_vars, None, scope)

    def _set(self, target: ast.expr, value: ast.expr | None, scope: ast.AST | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            for index, element in enumerate(target.elts):
                part = parts[index] if len(parts) == len(target.elts) else None
                if part is None and value is not None and not parts:
                    part = ast.copy_location(ast.Subscript(value, ast.Constant(index), ast.Load()), value)
                self._set(element, part, scope)
        elif isinstance(target, ast.Name):
            is_global = isinstance(scope, Function) and any(
                isinstance(one, ast.Global) and target.id in one.names for one in scope.body
            )
            self._bound[0 if scope is None or is_global else id(scope), target.id].append(value)
        elif isinstance(target, ast.Attribute):
            self._attributes[ast.unparse(target)].append(value)


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _parameters(function: Function) -> list[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _of_function(function: Function) -> Iterator[ast.stmt]:
    """Statements of a function, those of functions within it left out."""
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, (*_LOCAL, ast.ClassDef)):
            continue
        if isinstance(node, ast.stmt):
            yield node
        stack += ast.iter_child_nodes(node)


def _is_property(function: Function) -> bool:
    return _has_decorator(function, "property") or _has_decorator(function, "cached_property")


def _has_decorator(function: Function, name: str) -> bool:
    return any(ast.unparse(one).rpartition(".")[2] == name for one in function.decorator_list)
