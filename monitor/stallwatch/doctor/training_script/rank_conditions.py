"""Which expressions are a rank, and which conditions let only some ranks pass."""

import ast
import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from stallwatch.doctor.training_script.script_values import Function
from stallwatch.doctor.training_script.source import Script
from stallwatch.hook.launcher_variables import LOCAL_RANK_NAMES, RANK_NAMES, SIZE_NAMES

ZERO: Final = "0"  # the key of every condition that tells rank 0, or the main process, from the others

_RANK: Final = re.compile(
    r"_?(?:(?:global|world|local|ddp|ddp_local|dist|my|process|proc|cur|current|node|gpu|machine|dp|tp|pp|mp|cp|ep)_)?"
    r"(?:rank|RANK)|LOCAL_RANK|rank_id|(?:local_)?process_index"
)
_RANK_CALLS: Final = re.compile(
    r"get_(?:(?:global|world|local|node|node_local|data_parallel|tensor_model_parallel|pipeline_model_parallel)_)?rank|"
    r"(?:get_)?local_rank|global_rank|Get_rank|global_ordinal|get_ordinal"
)
_RANK_FUNCTIONS: Final = ("horovod.torch.rank", "hvd.rank", "torch_xla.runtime.global_ordinal", "xm.get_ordinal")
_GLOBAL_ATTRIBUTES: Final = re.compile(
    r"(?:accelerator|state|PartialState\(\))\.process_index|(?:.*\.)?(?:trainer|fabric)\.global_rank"
)
_RANK_VARIABLES: Final = (*RANK_NAMES, *LOCAL_RANK_NAMES, "GROUP_RANK", "NODE_RANK", "SLURM_NODEID")
_WORLD_VARIABLES: Final = (*SIZE_NAMES, "SLURM_NPROCS")
_WORLD_CALLS: Final = re.compile(r"get_(?:\w+_)?world_size|world_size|Get_size|device_count")
_DEEPEST: Final = 12  # names that stand for others
_MAIN: Final = re.compile(
    r"_?(?:is|am|i_am|on)_(?:local_|global_|world_)?(?:main|master|root|chief|primary|leader|rank_?(?:0|zero)|"
    r"global_zero|process_zero|zero_rank)(?:_process|_proc|_rank|_worker)?|(?:main|master|root|first)_process|"
    r"(?:is_)?rank_?(?:0|zero)|should_save|should_log"
)
_FOR_MAIN_ONLY: Final = re.compile(
    r"rank_zero_only|rank_?0_only|only_on_rank_?(?:0|zero)|main_process_only|master_only|on_(?:local_)?main_process|"
    r"only_main_process|zero_rank_only"
)
_WORLD: Final = re.compile(r"world|num_replicas|nprocs|num_processes|n_?ranks|num_ranks|num_shards", re.IGNORECASE)


class Condition(NamedTuple):
    """A condition that some ranks fulfil and others do not. Two with one key and other signs complete each other."""

    key: str
    positive: bool
    line: int

    @property
    def negated(self) -> "Condition":
        """The condition that exactly the other ranks fulfil."""
        return self._replace(positive=not self.positive)

    @property
    def words(self) -> str:
        """The ranks that fulfil it, in words."""
        if self.key == ZERO:
            return "rank 0 alone" if self.positive else "all but rank 0"
        return f"the ranks with {self.key}" if self.positive else f"the ranks without {self.key}"


class RankExpressions:
    """Knows of one script which expressions are a rank, how many ranks there are, or a condition on the rank. Values
    decide; a name does where nothing in the script tells what it stands for."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._open: set[tuple[str, str]] = set()  # what is being looked up: an assignment may go in a circle

    def is_rank(self, node: ast.expr) -> bool:
        """Whether this is a rank, of whatever group: `rank`, `args.local_rank`, `dist.get_rank()`, `rank % 8`."""
        return self._rank(node) is True

    def is_global_rank(self, node: ast.expr) -> bool:
        """Whether this is the rank in the whole job, surely: `dist.get_rank()` or $RANK, or a name for it alone."""
        return self._global_rank(node) is True

    def is_world_size(self, node: ast.expr) -> bool:
        """Whether this is how many ranks, or nodes, there are."""
        return self._world_size(node) is True

    def _rank(self, node: ast.expr) -> bool | None:
        """None: nothing tells."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
            return self._rank(node.left)
        if isinstance(node, ast.Constant):
            return False
        if variable := self.variable_of(node):
            return variable in _RANK_VARIABLES
        if isinstance(node, ast.Call):
            name = self._script.name_of(node.func)
            if name in _RANK_FUNCTIONS or _RANK_CALLS.fullmatch(name.rpartition(".")[2]):
                return True
            return self._by_values("rank", node, self._rank)
        if isinstance(node, (ast.Name, ast.Attribute)):
            last = node.id if isinstance(node, ast.Name) else node.attr
            known = self._by_values("rank", node, self._rank)
            return True if known is None and _RANK.fullmatch(last) else known
        return self._by_values("rank", node, self._rank)

    def _global_rank(self, node: ast.expr) -> bool | None:
        if variable := self.variable_of(node):
            return variable in RANK_NAMES
        if isinstance(node, ast.Call):
            name = self._script.name_of(node.func)
            if name in ("torch.distributed.get_rank", "deepspeed.comm.get_rank"):
                return not (node.args or node.keywords)
        if isinstance(node, ast.Attribute) and _GLOBAL_ATTRIBUTES.fullmatch(ast.unparse(node)):
            return True
        return self._by_values("global rank", node, self._global_rank)

    def _world_size(self, node: ast.expr) -> bool | None:
        if variable := self.variable_of(node):
            return variable in _WORLD_VARIABLES
        if isinstance(node, ast.Call):
            name = self._script.name_of(node.func)
            if _WORLD_CALLS.fullmatch(name.rpartition(".")[2]) or name in ("horovod.torch.size", "hvd.size"):
                return True
        known = self._by_values("world size", node, self._world_size)
        if known is None and isinstance(node, (ast.Name, ast.Attribute)):
            return True if _WORLD.search(ast.unparse(node)) else None
        return known

    def _by_values(self, what: str, node: ast.expr, judge: Callable[[ast.expr], bool | None]) -> bool | None:
        """Whether everything that an expression stands for is so; constants beside it (no job: rank 0) do not count,
        and alone they are none. None where nothing tells."""
        key = what, ast.dump(node)
        origins = self._script.values.of(node)
        if origins is None or key in self._open or len(self._open) > _DEEPEST:
            return None
        values = [one for one in origins if not isinstance(one, ast.Constant)]
        if not values:
            return False
        self._open.add(key)
        try:
            judged = [None if one is None else judge(one) for one in values]
        finally:
            self._open.discard(key)
        if all(one is True for one in judged):
            return True
        return None if None in judged else False

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
        if isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            known = self._condition_by_values(node)
            if known is not None:
                return known or None
            last = self._script.last_name_of(node.func if isinstance(node, ast.Call) else node)
            if _MAIN.fullmatch(last) and not (isinstance(node, ast.Call) and node.args):
                return Condition(ZERO, True, node.lineno)
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
        """Whether a decorator lets rank 0 alone run the function: by its name, or by what the script's own one does."""
        for one in decorators:
            node = one.func if isinstance(one, ast.Call) else one
            if _FOR_MAIN_ONLY.fullmatch(self._script.last_name_of(node)):
                return True
            own = self._script.values.function_of(ast.Call(node, [], []))
            if own is not None and self._runs_on_main_only(own):
                return True
        return False

    def _runs_on_main_only(self, decorator: Function) -> bool:
        """Whether a decorator calls what it is given under `if rank == 0:`, and nowhere else."""
        given = {one.arg for one in decorator.args.args}

        def calls(node: ast.AST) -> int:
            return sum(
                isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in given
                for one in ast.walk(node)
            )

        guarded = sum(
            sum(map(calls, node.body))
            for node in ast.walk(decorator)
            if isinstance(node, ast.If) and (found := self.condition(node.test)) and found[:2] == (ZERO, True)
        )
        return 0 < guarded == calls(decorator)

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

    def _condition_by_values(self, node: ast.expr) -> "Condition | Literal[False] | None":
        """`master_process = ddp_rank == 0`, `def is_main(): return get_rank() == 0`; that it is True without a job is
        all the same. False: it is none. None: nothing tells."""
        origins = self._script.values.of(node)
        key = "condition", ast.dump(node)
        if origins is None or None in origins or key in self._open or len(self._open) > _DEEPEST:
            return None
        values = [one for one in origins if one is not None and not isinstance(one, ast.Constant)]
        self._open.add(key)
        try:
            found = [self.condition(one) for one in values]
        finally:
            self._open.discard(key)
        first = next(iter(found), None)
        if first is None or any(one is None or one[:2] != first[:2] for one in found):
            return False if all(isinstance(one, ast.Constant) for one in origins) else None
        return first._replace(line=node.lineno)


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
