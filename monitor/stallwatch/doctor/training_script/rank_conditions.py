"""Which expressions are a rank, and which conditions let only some ranks pass."""

import ast
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from stallwatch.doctor.training_script.source import Script, target_name

ZERO: Final = "0"  # the key of every condition that tells rank 0, or the main process, from the others

_RANK: Final = re.compile(
    r"_?(?:(?:global|world|local|ddp|ddp_local|dist|my|process|proc|cur|current|node|gpu|machine|dp|tp|pp|mp|cp|ep)_)?"
    r"(?:rank|RANK)|LOCAL_RANK|rank_id|(?:local_)?process_index"
)
_RANK_CALLS: Final = re.compile(
    r"get_(?:(?:global|world|local|node|data_parallel|tensor_model_parallel|pipeline_model_parallel)_)?rank|"
    r"(?:get_)?local_rank|global_rank"
)
_RANK_VARIABLES: Final = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK")
_GLOBAL_VARIABLES: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_MAIN: Final = re.compile(
    r"_?(?:is|am|i_am|on)_(?:local_|global_|world_)?(?:main|master|root|chief|primary|leader|rank_?(?:0|zero)|"
    r"global_zero|process_zero|zero_rank)(?:_process|_proc|_rank|_worker)?|(?:main|master|root|first)_process|"
    r"(?:is_)?rank_?(?:0|zero)"
)
_FOR_MAIN_ONLY: Final = re.compile(
    r"rank_zero_only|rank_?0_only|only_on_rank_?(?:0|zero)|main_process_only|master_only|on_(?:local_)?main_process|"
    r"only_main_process|zero_rank_only"
)
_WHOLE: Final = re.compile(r"world|size|replica|nprocs|num_|count|total", re.IGNORECASE)


class Condition(NamedTuple):
    """A condition that some ranks fulfil and others do not. Two with one key and other signs complete each other."""

    key: str
    positive: bool
    line: int

    @property
    def negated(self) -> "Condition":
        return self._replace(positive=not self.positive)

    @property
    def words(self) -> str:
        if self.key == ZERO:
            return "rank 0 alone" if self.positive else "all but rank 0"
        return f"the ranks with {self.key}" if self.positive else f"the ranks without {self.key}"


class Ranks:
    """Knows of one script which expressions are a rank, or a condition on it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._open: set[str] = set()  # names that are being looked up: an assignment may go in a circle

    def is_rank(self, node: ast.expr) -> bool:
        """Whether this is a rank, of whatever group: `rank`, `args.local_rank`, `dist.get_rank()`, `rank % 8`."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self.is_rank(node.left)
        if isinstance(node, ast.Call):
            last = self._script.name_of(node.func).rpartition(".")[2]
            if last == "int" and node.args:
                return self.is_rank(node.args[0])
            return bool(_RANK_CALLS.fullmatch(last)) or self.variable_of(node) in _RANK_VARIABLES
        if isinstance(node, ast.Subscript):
            return self.variable_of(node) in _RANK_VARIABLES
        if isinstance(node, (ast.Name, ast.Attribute)):
            last = node.id if isinstance(node, ast.Name) else node.attr
            return bool(_RANK.fullmatch(last)) or self._all_assigned(node, self.is_rank)
        return False

    def is_global_rank(self, node: ast.expr) -> bool:
        """Whether this is the rank in the whole job, surely: `dist.get_rank()` or $RANK, or a name for it alone."""
        if isinstance(node, ast.Call):
            name = self._script.name_of(node.func)
            if name == "int" and node.args:
                return self.is_global_rank(node.args[0])
            whole = name in ("torch.distributed.get_rank", "deepspeed.comm.get_rank") and not (
                node.args or node.keywords
            )
            return whole or self.variable_of(node) in _GLOBAL_VARIABLES
        if isinstance(node, ast.Subscript):
            return self.variable_of(node) in _GLOBAL_VARIABLES
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._all_assigned(node, self.is_global_rank)
        return False

    def variable_of(self, node: ast.expr) -> str:
        """The name of the environment variable that an expression reads; "" when it reads none."""
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and self._script.name_of(node.value).endswith("environ"):
            key = node.slice
        elif isinstance(node, ast.Call) and node.args:
            name = self._script.name_of(node.func)
            if name.endswith(("environ.get", "os.getenv")) or name == "getenv":
                key = node.args[0]
        return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""

    def condition(self, node: ast.expr) -> Condition | None:
        """The condition on the rank that an expression is, or holds among others; None where all ranks judge alike, or
        nobody can tell."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.condition(node.operand)
            return inner.negated if inner else None
        if isinstance(node, ast.BoolOp):
            parts = [self.condition(value) for value in node.values]
            if isinstance(node.op, ast.And):
                return next((part for part in parts if part), None)
            return parts[0] if all(parts) else None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._comparison(node.left, node.ops[0], node.comparators[0])
        if self.is_rank(node):
            return Condition(ZERO, False, node.lineno)
        if isinstance(node, (ast.Name, ast.Attribute)) or (isinstance(node, ast.Call) and not node.args):
            last = self._script.name_of(node.func if isinstance(node, ast.Call) else node).rpartition(".")[2]
            if _MAIN.fullmatch(last):
                return Condition(ZERO, True, node.lineno)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._assigned_condition(node)
        return None

    def cases(self, node: ast.Match) -> list[tuple[ast.match_case, Condition | None]]:
        """The cases of a `match` on a rank, each with its condition; that of `case _` where it is against one alone."""
        found = [
            self._comparison(node.subject, ast.Eq(), case.pattern.value)
            if isinstance(case.pattern, ast.MatchValue) and case.guard is None
            else None
            for case in node.cases
        ]
        if len(found) == 2 and found[0] is not None and found[1] is None:
            found[1] = found[0].negated
        return list(zip(node.cases, found, strict=True))

    def is_for_main_only(self, decorators: list[ast.expr]) -> bool:
        """Whether a decorator lets rank 0 alone run the function."""
        names = (self._script.name_of(one.func if isinstance(one, ast.Call) else one) for one in decorators)
        return any(_FOR_MAIN_ONLY.fullmatch(name.rpartition(".")[2]) for name in names)

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Condition | None:
        line = left.lineno
        if not self.is_rank(left):
            if self.is_rank(right) and isinstance(operator, (ast.Eq, ast.NotEq)):
                return self._comparison(right, operator, left)
            return None
        if isinstance(operator, (ast.In, ast.NotIn)):
            numbers = (
                {_integer(one) for one in right.elts} if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else {None}
            )
            if None in numbers or not (members := {one for one in numbers if one is not None and one >= 0}):
                return None
            key = ZERO if members == {0} else f"{ast.unparse(left)} in {sorted(members)}"
            return Condition(key, isinstance(operator, ast.In), line)
        number = _integer(right)
        if isinstance(operator, (ast.Eq, ast.NotEq)):
            if number is not None and number < 0:
                return None  # -1 is "not distributed", on all ranks alike
            if number is None and isinstance(right, ast.Constant):
                return None
            key = ZERO if number == 0 else f"{ast.unparse(left)} == {ast.unparse(right)}"
            return Condition(key, isinstance(operator, ast.Eq), line)
        if number is None or not isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            return None
        # "Below n", negated or not; below 0 is nobody, below 1 is rank 0.
        below = number + isinstance(operator, (ast.LtE, ast.Gt))
        if below < 1:
            return None
        key = ZERO if below == 1 else f"{ast.unparse(left)} < {below}"
        return Condition(key, isinstance(operator, (ast.Lt, ast.LtE)), line)

    def _assigned_condition(self, node: ast.Name | ast.Attribute) -> Condition | None:
        """`master_process = ddp_rank == 0`; that it is True without a job is all the same."""
        name = target_name(node)
        values = [one for one in self._script.assigned.get(name, []) if not isinstance(one, ast.Constant)]
        if not values or name in self._open or name in self._script.parameters:
            return None
        self._open.add(name)
        try:
            found = [self.condition(one) if one is not None else None for one in values]
        finally:
            self._open.discard(name)
        first = found[0]
        if first is None or any(one is None or one[:2] != first[:2] for one in found):
            return None
        return first._replace(line=node.lineno)

    def _all_assigned(self, node: ast.Name | ast.Attribute, judge: Callable[[ast.expr], bool]) -> bool:
        name = target_name(node)
        values = [one for one in self._script.assigned.get(name, []) if not isinstance(one, ast.Constant)]
        if not values or name in self._open or name in self._script.parameters:
            return False
        self._open.add(name)
        try:
            return all(one is not None and judge(one) for one in values)
        finally:
            self._open.discard(name)


def is_whole(node: ast.expr) -> bool:
    """Whether an expression speaks of how many ranks there are."""
    return bool(_WHOLE.search(ast.unparse(node)))


def _integer(node: ast.expr) -> int | None:
    """A whole number, also as the text that an environment gives."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool):
        if isinstance(node.value, int):
            return node.value
        if isinstance(node.value, str) and node.value.lstrip("-").isdecimal():
            return int(node.value)
    return None
