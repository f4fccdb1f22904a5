"""Loops of a training script: which goes over the data, and which lets it go over them again. By what they do, whatever
their names."""

import ast
from collections.abc import Iterator
from typing import Final

from stallwatch.doctor.training_script.script_values import Function
from stallwatch.doctor.training_script.source import Script, keyword

Loop = ast.For | ast.AsyncFor | ast.While
_BACKWARD: Final = "backward"
# What people put around what they iterate.
_AROUND: Final = frozenset(("enumerate", "tqdm", "iter", "trange", "track", "islice", "zip", "reversed", "cycle"))
# Of those, what goes over the same elements, each once.
WHOLE: Final = frozenset(("enumerate", "tqdm", "iter", "track", "reversed"))
_DEEPEST: Final = 4  # functions that call functions


def goes_over_data_again(script: Script) -> bool:
    """Whether some loop goes round more than once and holds, also through the script's own functions, a loop over data
    with a backward pass in it."""
    return any(
        isinstance(node, Loop) and _more_than_once(script, node) and _trains_within(script, node.body, frozenset())
        for node in ast.walk(script.tree)
    )


def _more_than_once(script: Script, loop: Loop) -> bool:
    """`for e in range(n)`, `while …`, over anything that is no data: of a constant range of one, no."""
    if isinstance(loop, ast.While):
        return True
    iterated = bare(script, loop.iter)
    if isinstance(iterated, ast.Call) and script.last_name_of(iterated.func) in ("range", "trange", "arange"):
        numbers = [one.value for one in iterated.args if isinstance(one, ast.Constant) and type(one.value) is int]
        if not numbers or len(numbers) != len(iterated.args):
            return True
        return (numbers[1] - numbers[0] if len(numbers) > 1 else numbers[0]) > 1
    return isinstance(iterated, ast.Call) and script.last_name_of(iterated.func) == "count"


def _trains_within(script: Script, body: list[ast.stmt], open_: frozenset[str]) -> bool:
    """Whether these statements run a whole loop over data with a backward pass in it."""
    for node in _nodes(body):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            if _is_over_data(script, node) and has_backward(script, node.body, frozenset()):
                return True
            continue
        function = _own(script, node, open_)
        if function is not None and _trains_within(script, function.body, open_ | {function.name}):
            return True
    return False


def _own(script: Script, node: ast.AST, open_: frozenset[str]) -> Function | None:
    """The script's own function that a call runs, if it is not being looked at already."""
    function = script.values.function_of(node) if isinstance(node, ast.Call) else None
    return function if function is not None and function.name not in open_ and len(open_) < _DEEPEST else None


def _is_over_data(script: Script, loop: ast.For | ast.AsyncFor) -> bool:
    """Not over numbers: micro-steps of one batch are no epoch."""
    iterated = bare(script, loop.iter)
    if isinstance(iterated, ast.Call):
        return script.last_name_of(iterated.func) not in ("range", "trange", "count", "arange")
    return isinstance(iterated, (ast.Name, ast.Attribute, ast.Subscript))


def has_backward(script: Script, body: list[ast.stmt], open_: frozenset[str] = frozenset()) -> bool:
    """Whether these statements run a backward pass, also through the script's own functions."""
    for node in _nodes(body):
        if isinstance(node, ast.Call) and script.last_name_of(node.func) == _BACKWARD:
            return True
        function = _own(script, node, open_)
        if function is not None and has_backward(script, function.body, open_ | {function.name}):
            return True
    return False


def bare(script: Script, node: ast.expr, around: frozenset[str] = _AROUND) -> ast.expr:
    """What is iterated, without what only counts or shows it, as far as names of this script tell."""
    for _ in range(6):
        if isinstance(node, ast.Call) and script.last_name_of(node.func) in around - {"trange"}:
            inner = node.args[0] if node.args else keyword(node, "iterable")
            if inner is None:
                return node
            node = inner
            continue
        origins = script.values.of(node) if isinstance(node, ast.Name) else None
        made = origins[0] if origins and len(origins) == 1 else None
        if not isinstance(made, ast.Call) or script.last_name_of(made.func) not in around | {"range"}:
            return node
        node = made
    return node


def _nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Everything in these statements, what functions within them hold left out."""
    stack: list[ast.AST] = list(reversed(body))
    while stack:
        node = stack.pop()
        if isinstance(node, (Function, ast.Lambda, ast.ClassDef)):
            continue
        yield node
        stack += reversed(list(ast.iter_child_nodes(node)))
