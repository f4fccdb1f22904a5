"""Which situations have a twin without an end: those of which something lasts for CONTROL_SECONDS."""

import ast
from functools import cache
from pathlib import Path

from tests.controls.catalogue import ON_GPUS, PROGRAMS, program_of, registered

_QUIET_SECONDS = "QUIET_SECONDS"  # of common.py
_FOLDER, _COMMON = "tests.controls.", "tests.controls.common"
_FOR_SECONDS = ("one_rank_waits", "every_rank_waits")  # their argument is that long
_MOST_SECONDS = 1000.0  # min(QUIET_SECONDS, 18.0) has an end, in a twin, too
# Their wait is not in their function: the runner's shell sleeps, or the program does above its imports.
_WAIT_ELSEWHERE = ("wrapped_by_a_shell", "one_imports_late")


@cache
def has_twin(name: str) -> bool:
    """Return whether a situation lasts for ever where CONTROL_SECONDS has no end: whether that number is read by its
    function, by what is done before its rendezvous, or by what these call in the programs of this folder."""
    if name in _WAIT_ELSEWHERE:
        return True
    program = program_of(name, (*PROGRAMS, ON_GPUS))
    if program is None:
        return False  # done from outside to a job that only trains
    function = registered(program)[name]
    if ast.unparse(function.decorator_list[0]) in _FOR_SECONDS and _names(function.args.args[0].arg, function):
        return True
    before = f"before_rendezvous({name!r})"
    parts = [function, *(one for one in _defined(program).values() if before in _decorators(one))]
    return any(_reads_it(program, part, set()) for part in parts)


def _reads_it(program: Path, part: ast.AST, seen: set[int]) -> bool:
    if id(part) in seen:
        return False
    seen.add(id(part))
    if _names(_QUIET_SECONDS, part):
        return True
    for name in {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}:
        where, defined = program, _defined(program).get(name)
        if isinstance(defined, ast.ImportFrom):
            where = program.with_stem((defined.module or "").removeprefix(_FOLDER))
            defined = _defined(where).get(name)
        if defined is not None and _reads_it(where, defined, seen):
            return True
    return False


def _names(name: str, part: ast.AST) -> bool:
    """Whether this reads the name, other than for what is bounded."""
    if isinstance(part, ast.Name):
        return part.id == name
    return not _is_bounded(part) and any(_names(name, child) for child in ast.iter_child_nodes(part))


def _is_bounded(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "min":
        return False
    numbers = [one.value for one in node.args if isinstance(one, ast.Constant)]
    return any(isinstance(number, int | float) and number < _MOST_SECONDS for number in numbers)


@cache
def _defined(program: Path) -> dict[str, ast.stmt]:
    """What a program defines, or imports from another of this folder, by name; common.py's are what all share."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(program.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {one.id: node for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_FOLDER) and node.module != _COMMON:
            found |= {one.name: node for one in node.names}
    return found


def _decorators(node: ast.stmt) -> list[str]:
    return [ast.unparse(one) for one in node.decorator_list] if isinstance(node, ast.FunctionDef) else []
