"""Which calls are collectives, of the whole job or of a group, also through the script's own functions."""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from stallwatch.doctor.training_script.models import Models
from stallwatch.doctor.training_script.rank_conditions import ZERO, Condition, RankExpressions
from stallwatch.doctor.training_script.script_values import Function
from stallwatch.doctor.training_script.source import Script, calls_in, keyword

_MODULES: Final = (
    "torch.distributed", "deepspeed.comm", "deepspeed.comm.comm", "torch.distributed.distributed_c10d",
    "torch.distributed.nn", "torch.distributed.nn.functional", "torch.distributed._functional_collectives",
)  # fmt: skip
# torch.distributed's collectives, and where the group stands among the arguments (distributed_c10d.py, 2.15).
_GROUP_AT: Final = {
    "all_reduce": 2, "broadcast": 2, "reduce": 3, "all_gather": 2, "all_gather_into_tensor": 2, "all_gather_object": 2,
    "gather": 3, "gather_object": 3, "scatter": 3, "scatter_object_list": 3, "reduce_scatter": 3,
    "reduce_scatter_tensor": 3, "all_to_all": 2, "all_to_all_single": 4, "barrier": 0, "monitored_barrier": 0,
    "broadcast_object_list": 2, "all_reduce_coalesced": 2, "all_gather_coalesced": 2, "new_group": 99,
    "init_process_group": 99, "inference_all_reduce": 2,
}  # fmt: skip
# Methods of libraries that are collectives, by a word of the receiver's name ("": of any).
_METHODS: Final = {
    "wait_for_everyone": ("",), "gather_for_metrics": ("",), "pad_across_processes": ("accelerator",),
    "gather": ("accelerator",), "reduce": ("accelerator",), "barrier": ("fabric", "strategy", "accelerator"),
    "all_gather": ("fabric", "pl_module", "lightningmodule"), "all_reduce": ("fabric",),
    "broadcast": ("fabric", "strategy"),
}  # fmt: skip


class CollectiveCall(NamedTuple):
    """A call that every rank of the job must make."""

    call: ast.Call
    operation: str
    through: str = ""  # the script's own function that makes it

    @property
    def words(self) -> str:
        """The call in words: the operation, and the script's own function through which it is made."""
        return f"{self.through}(), which calls {self.operation}" if self.through else self.operation


class Guarded(NamedTuple):
    """A collective, with what decides about which ranks come to it."""

    collective: CollectiveCall
    guards: tuple[Condition, ...]  # the conditions on the rank under which it stands, the outermost first
    owner: str  # the class of the function in which it stands, else the function: what must complete each other


class Collectives:
    """Knows of one script which of its calls are collectives of the whole job; given its models, also which of theirs
    are."""

    def __init__(self, script: Script, models: Models | None = None) -> None:
        self._script = script
        self._models = models
        self.ranks = RankExpressions(script)
        functions = list(script.functions())
        names = [(owner, function.name) for owner, function in functions]
        # A name that two functions have is nobody's.
        self._functions = {key: of for key, (_, of) in zip(names, functions, strict=True) if names.count(key) == 1}
        self._operations: dict[tuple[str, str], str] = {}
        self._find_operations()

    def of_call(self, call: ast.Call, owner: str = "") -> CollectiveCall | None:
        """The collective that a call is, or makes; None for every other, and for one that is of a group."""
        operation = self.operation_of(call)
        if operation:
            return CollectiveCall(call, operation)
        key = self._own_function(call, owner)
        if key in self._operations:
            return CollectiveCall(call, self._operations[key], key[1])
        return None

    def operation_of(self, call: ast.Call) -> str:
        """Return the collective that a call is, "" where it is none or is one of a group that is not the whole job."""
        module, _, last = self._script.name_of(call.func).rpartition(".")
        if last in _GROUP_AT and module in _MODULES:
            return "" if _has_group(call, _GROUP_AT[last]) else last
        if module == "self" and self._script.mentions("LightningModule"):
            module = "lightningmodule"  # its own all_gather
        if any(word in module.lower() for word in _METHODS.get(last, ())):
            return last
        return self._models.operation_of(call) if self._models else ""

    def guarded(self) -> Iterator[Guarded]:
        """Every collective of the file, with the conditions on the rank under which it stands."""
        top = (stmt for stmt in self._script.tree.body if not isinstance(stmt, (*_FUNCTIONS, ast.ClassDef)))
        yield from self._walk(list(top), (), "", "")
        for owner, function in self._script.functions():
            start = (Condition(ZERO, True, function.lineno),) if self._is_for_main(function) else ()
            yield from self._walk(function.body, start, owner, owner or function.name)

    def _is_for_main(self, function: Function) -> bool:
        return self.ranks.is_for_main_only(function.decorator_list)

    def _find_operations(self) -> None:
        """The functions of the script that make a collective whatever their rank, through others too."""
        while True:
            found = {
                (owner, function.name): made
                for (owner, _), function in self._functions.items()
                if (owner, function.name) not in self._operations
                and (made := self._made_by(function, owner))
            }  # fmt: skip
            if not found:
                return
            self._operations |= found

    def _made_by(self, function: Function, owner: str) -> str:
        if self._is_for_main(function):
            return ""
        walked = self._walk(function.body, (), owner, "")
        return next((one.collective.operation for one in walked if not one.guards), "")

    def _own_function(self, call: ast.Call, owner: str) -> tuple[str, str]:
        name = self._script.name_of(call.func)
        if name.startswith("self."):
            return owner, name.removeprefix("self.")
        return "", name

    def _walk(self, body: list[ast.stmt], guards: tuple[Condition, ...], owner: str, unit: str) -> Iterator[Guarded]:
        for stmt in body:
            if isinstance(stmt, (*_FUNCTIONS, ast.ClassDef)):
                continue
            if isinstance(stmt, ast.If):
                yield from self._expression(stmt.test, guards, owner, unit)
                condition = self.ranks.condition(stmt.test)
                yield from self._walk(stmt.body, _with(guards, condition), owner, unit)
                negated = condition.negated if condition else None
                yield from self._walk(stmt.orelse, _with(guards, negated), owner, unit)
                # Who leaves here is not there for what follows.
                if returns(stmt.body):
                    guards = _with(guards, negated)
                elif stmt.orelse and returns(stmt.orelse):
                    guards = _with(guards, condition)
                continue
            if isinstance(stmt, ast.Match) and self.ranks.is_rank(stmt.subject):
                for case, condition in self.ranks.cases(stmt):
                    yield from self._walk(case.body, _with(guards, condition), owner, unit)
                continue
            for _, value in ast.iter_fields(stmt):
                parts = value if isinstance(value, list) else [value]
                if parts and isinstance(parts[0], ast.stmt):
                    yield from self._walk(parts, guards, owner, unit)
                    continue
                for part in parts:
                    if isinstance(part, (ast.ExceptHandler, ast.match_case)):
                        yield from self._walk(part.body, guards, owner, unit)
                    elif isinstance(part, ast.withitem):
                        yield from self._expression(part.context_expr, guards, owner, unit)
                    elif isinstance(part, ast.expr):
                        yield from self._expression(part, guards, owner, unit)

    def _expression(self, node: ast.expr, guards: tuple[Condition, ...], owner: str, unit: str) -> Iterator[Guarded]:
        if isinstance(node, ast.IfExp) and (condition := self.ranks.condition(node.test)):
            yield from self._expression(node.body, _with(guards, condition), owner, unit)
            yield from self._expression(node.orelse, _with(guards, condition.negated), owner, unit)
            return
        if isinstance(node, ast.BoolOp) and (condition := self.ranks.condition(node.values[0])):
            passes = condition if isinstance(node.op, ast.And) else condition.negated
            for value in node.values[1:]:
                yield from self._expression(value, _with(guards, passes), owner, unit)
            return
        for call in calls_in(node):
            if collective := self.of_call(call, owner):
                yield Guarded(collective, guards, unit)


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def returns(body: list[ast.stmt]) -> bool:
    """Whether whoever runs these statements leaves in peace before what follows them; an exception ends the job."""
    return any(
        isinstance(stmt, (ast.Return, ast.Continue, ast.Break))
        or (isinstance(stmt, (ast.With, ast.AsyncWith)) and returns(stmt.body))
        or (isinstance(stmt, ast.If) and bool(stmt.orelse) and returns(stmt.body) and returns(stmt.orelse))
        for stmt in body
    )


def _with(guards: tuple[Condition, ...], condition: Condition | None) -> tuple[Condition, ...]:
    return (*guards, condition) if condition else guards


def _has_group(call: ast.Call, at: int) -> bool:
    """Whether a call is of a group: which ranks are in it nobody sees here."""
    given = keyword(call, "group") or keyword(call, "process_group")
    if given is None and len(call.args) > at:
        given = call.args[at]
    if given is None:
        return False
    return not (isinstance(given, ast.Constant) and given.value is None) and not ast.unparse(given).endswith("WORLD")
