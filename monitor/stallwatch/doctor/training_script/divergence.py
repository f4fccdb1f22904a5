"""Collectives that only some ranks come to: under a condition on the rank, or only where nothing was raised."""

import ast
import re
from collections.abc import Iterator
from typing import ClassVar, Final

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.training_script.collective_calls import CollectiveCall, Collectives, Guarded
from stallwatch.doctor.training_script.models import Models
from stallwatch.doctor.training_script.source import Script, ScriptCheck, calls_in, nodes_in, target_name

_SOURCE: Final = "PyTorch documentation, torch.distributed: every rank of the group must call"


class RankConditionalCollective(ScriptCheck):
    """Follows conditions on the rank through the script's own functions; branches that complete each other are left
    out."""

    name: ClassVar[str] = "rank_conditional_collective"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "in training scripts: a collective that only some ranks come to (`if rank == 0:` around it)"
    )

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield an error for each collective that only some ranks reach, with the condition that
        decides."""
        found = [one for one in Collectives(script, Models(script)).guarded() if one.guards]
        for one in found:
            if any(_is_completed(guard.key, guard.positive, one, found) for guard in one.guards):
                continue
            guard = one.guards[-1]
            yield finding(
                self, "error", script.place(one.collective.call),
                seen=f"{one.collective.words} is called by {guard.words} (condition in line {guard.line}).",
                why="A collective ends when every rank of the group has called it: these wait until the time-out for "
                "the ranks that do not.",
                remedy="call it on every rank and keep only printing, logging and saving under the condition; for some "
                "of the ranks make a group: new_group(ranks), group=…",
                source=_SOURCE,
            )  # fmt: skip


def _is_completed(key: str, positive: bool, one: Guarded, found: list[Guarded]) -> bool:
    """Whether the ranks that do not fulfil the condition make the same collective elsewhere: in the other branch, or
    as "first rank 0, then the others" does, in the same function or class."""
    return any(
        other.owner == one.owner and other.collective.operation == one.collective.operation
        and any(guard.key == key and guard.positive is not positive for guard in other.guards)
        for other in found
    )  # fmt: skip


# What all ranks meet alike, or what ends a loop or the job.
_ALIKE: Final = frozenset(
    ("StopIteration", "StopAsyncIteration", "KeyboardInterrupt", "ImportError", "ModuleNotFoundError",
     "AttributeError", "NotImplementedError", "SystemExit", "GeneratorExit", "TypeError")
)  # fmt: skip
_HARMLESS: Final = frozenset(("print", "info", "debug", "warning", "error", "time", "perf_counter", "log"))
_ENDS: Final = ("sys.exit", "exit", "quit", "os._exit", "os.abort", "os.kill", "_exit")
_BACKWARD: Final = "backward"
# A handler that goes on under such a condition does so where there are no other ranks.
_ALONE: Final = re.compile(r"world|is_initialized|is_available|distributed|n(?:um_)?(?:procs|processes|ranks)|ddp")
# That these fail is often how a script finds out that it runs alone.
_MAKES_GROUPS: Final = ("init_process_group", "new_group")


class SwallowedCollective(ScriptCheck):
    """Looks at each `try` and `suppress` of a scope, and at flags that a handler sets and a collective depends on."""

    name: ClassVar[str] = "swallowed_exception"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "in training scripts: an exception that one rank swallows and so misses a collective, or a barrier only where "
        "all went well"
    )

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a finding for each collective that a rank leaves out, or does not come to, once an
        exception was swallowed."""
        collectives = Collectives(script)
        for owner, body in script.scopes():
            for node in nodes_in(body):
                if isinstance(node, ast.Try):
                    yield from self._try(script, collectives, node, owner, is_last(node, body))
                elif isinstance(node, ast.With) and _suppresses(script, node):
                    said = f"the `suppress` of line {node.lineno} goes on"
                    yield from self._swallows(script, collectives, node.body, owner, said, is_last(node, body))
            yield from self._flags(script, collectives, body, owner)

    def _try(
        self, script: Script, collectives: Collectives, node: ast.Try, owner: str, at_end: bool
    ) -> Iterator[FindingRecord]:
        inside = list(_made(collectives, script, node.body, owner))
        handlers = [handler for handler in node.handlers if not _is_alike(script, handler)]
        swallowing = [handler for handler in handlers if not _ends_job(handler.body)]
        for handler in handlers:
            within = next(_made(collectives, script, handler.body, owner), None)
            if within and not inside:
                yield self._found(
                    script, within,
                    f"{within.words} is called by the ranks that raised (the `except` of line {handler.lineno}).",
                )  # fmt: skip
        if not swallowing:
            return
        said = f"the `except` of line {swallowing[0].lineno} goes on"
        # A handler with a collective of its own does the same in another way, on every rank.
        other_way = any(next(_made(collectives, script, one.body, owner), None) for one in swallowing)
        yield from self._swallows(script, collectives, node.body, owner, said, at_end or other_way)
        well = next(_made(collectives, script, node.orelse, owner), None)
        if well is not None:
            yield self._found(
                script, well,
                f"{well.words} is called only where nothing was raised (the `else` of the `try` in line "
                f"{node.lineno}).",
            )  # fmt: skip

    def _swallows(
        self, script: Script, collectives: Collectives, body: list[ast.stmt], owner: str, goes_on: str, at_end: bool
    ) -> Iterator[FindingRecord]:
        """Statements whose exceptions nobody sees: work before a collective, or the collective's own failure."""
        inside = list(_made(collectives, script, body, owner))
        risky = _first_risk(script, body, inside)
        if risky is not None:
            yield self._found(script, risky, f"{risky.words} is left out by a rank that raises before it: {goes_on}.")
            return
        alone = next((one for one in inside if one.operation not in _MAKES_GROUPS), None)
        if alone is not None and not at_end:
            yield self._found(
                script, alone,
                f"{alone.words} fails and nobody sees it: {goes_on}.",
                "Where a collective fails its group is broken or out of step: the rank that goes on meets the others "
                "in another call, or waits for peers that are gone.",
            )  # fmt: skip

    def _flags(
        self, script: Script, collectives: Collectives, body: list[ast.stmt], owner: str
    ) -> Iterator[FindingRecord]:
        """`ok = False` in an `except`, and a collective under `if ok:`, without the ranks having agreed on it."""
        nodes = list(nodes_in(body))
        flags = {
            target_name(target)
            for node in nodes
            if isinstance(node, ast.Try)
            for handler in node.handlers
            for stmt in handler.body
            if isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Constant)
            for target in stmt.targets
        } - {""}
        # One that is worked out, from what all ranks have agreed on perhaps, is another thing.
        flags = {one for one in flags if all(isinstance(value, ast.Constant) for value in script.assigned.get(one, []))}
        for node in nodes:
            if isinstance(node, ast.If) and (flag := _flag_of(node.test)) in flags:
                made = next(_made(collectives, script, node.body, owner), None)
                if made is not None:
                    yield self._found(
                        script, made,
                        f"{made.words} is called only where {flag} says that nothing was raised (line {node.lineno}).",
                    )  # fmt: skip

    def _found(self, script: Script, made: CollectiveCall, seen: str, why: str = "") -> FindingRecord:
        return finding(
            self, "warning", script.place(made.call),
            seen=seen,
            why=why
            or "An exception seldom comes to all ranks: the one that has it is missing in the collective, and the "
            "others wait for it until the time-out.",
            remedy="let the exception end the rank (raise again), or note it in a flag, all_reduce the flag on every "
            "rank, and decide together; a barrier belongs behind the try, on every path",
            source=_SOURCE,
        )  # fmt: skip


def _made(collectives: Collectives, script: Script, body: list[ast.stmt], owner: str) -> Iterator[CollectiveCall]:
    """Collectives of these statements; DDP's backward is one."""
    for call in calls_in(body):
        if made := collectives.of_call(call, owner):
            yield made
        elif script.is_data_parallel and script.name_of(call.func).endswith(f".{_BACKWARD}"):
            yield CollectiveCall(call, "backward(), which averages gradients,")


def _first_risk(script: Script, body: list[ast.stmt], inside: list[CollectiveCall]) -> CollectiveCall | None:
    """The first collective before which this rank alone may raise: with work before it, or in a function of its own. A
    collective that stands alone may raise too, but then on the others as well."""
    calls = [id(one.call) for one in inside]
    for call in calls_in(body):
        if id(call) in calls:
            made = inside[calls.index(id(call))]
            if made.through or made.operation.startswith(_BACKWARD):
                return made
            continue
        last = script.last_name_of(call.func)
        after = [one for one in inside if (one.call.lineno, one.call.col_offset) > (call.lineno, call.col_offset)]
        is_argument = any(call is inner for one in after for inner in ast.walk(one.call))
        if last not in _HARMLESS and after and not is_argument:
            return after[0]
    return None


def _suppresses(script: Script, node: ast.With) -> bool:
    """`with contextlib.suppress(Exception):`"""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    kinds = [kind for call in calls if script.last_name_of(call.func) == "suppress" for kind in call.args]
    return any(script.last_name_of(kind) not in _ALIKE for kind in kinds)


def is_last(node: ast.stmt, body: list[ast.stmt]) -> bool:
    """Whether nothing follows but the end of the group: a barrier of a clean-up harms nobody."""
    stmts = list(nodes_in(body))
    after = stmts[stmts.index(node) :]
    in_finally = any(isinstance(one, ast.Try) and node in one.finalbody for one in stmts)
    destroys = any(isinstance(one, ast.Expr) and "destroy_process_group" in ast.unparse(one) for one in after)
    in_loop = any(isinstance(one, (ast.For, ast.While)) and node in ast.walk(one) for one in stmts)
    return not in_loop and (in_finally or destroys)


def _is_alike(script: Script, handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    names = [script.last_name_of(kind) for kind in kinds]
    return bool(names) and all(name in _ALIKE for name in names)


def _ends_job(body: list[ast.stmt]) -> bool:
    """Whether a handler ends the rank in a way that its launcher takes for a failure, on every path."""
    for stmt in body:
        if isinstance(stmt, ast.If) and (_goes_on(stmt.body) or _goes_on(stmt.orelse)):
            if not _ALONE.search(ast.unparse(stmt.test)):
                return False
            continue
        if isinstance(stmt, ast.Raise):
            return True
        if isinstance(stmt, ast.Return) and isinstance(stmt.value, ast.Constant) and _is_exit_code(stmt.value.value):
            return True
        if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call):
            call = stmt.value
            if ast.unparse(call.func) in _ENDS and not _is_success(call):
                return True
        if isinstance(stmt, ast.If) and stmt.orelse and _ends_job(stmt.body) and _ends_job(stmt.orelse):
            return True
        if isinstance(stmt, (ast.With, ast.AsyncWith, ast.Try)) and _ends_job(stmt.body):
            return True
    return False


def _goes_on(body: list[ast.stmt]) -> bool:
    """Whether some path through these statements leaves them in peace: `if …: continue` before a bare `raise`."""
    for stmt in body:
        if isinstance(stmt, (ast.Continue, ast.Break, ast.Return)):
            return not _ends_job([stmt])
        if isinstance(stmt, ast.If):
            if _goes_on(stmt.body) or _goes_on(stmt.orelse):
                return True
        elif isinstance(stmt, (ast.With, ast.AsyncWith, ast.Try)) and _goes_on(stmt.body):
            return True
        if _ends_job([stmt]):
            return False
    return False


def _is_exit_code(value: object) -> bool:
    return type(value) is int and value != 0


def _is_success(call: ast.Call) -> bool:
    """`sys.exit()` and `sys.exit(0)`: the launcher stops nobody then."""
    if ast.unparse(call.func) in ("os.abort", "os.kill"):
        return False
    return not call.args or (isinstance(call.args[0], ast.Constant) and call.args[0].value in (0, None))


def _flag_of(test: ast.expr) -> str:
    """The name that a test is, or denies."""
    return target_name(test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test)
