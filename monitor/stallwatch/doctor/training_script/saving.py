"""A sharded model whose parts only rank 0 wants to save."""

import ast
from collections.abc import Iterator
from typing import ClassVar, Final

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.training_script.rank_conditions import ZERO, Condition, RankExpressions
from stallwatch.doctor.training_script.script_values import Function
from stallwatch.doctor.training_script.source import Script, ScriptCheck, calls_in, keyword, target_name

_FSDP: Final = ("FullyShardedDataParallel", "FSDP", "fully_shard")
# Functions of torch.distributed.checkpoint, state_dict and FSDP that all ranks must call.
_EVERYBODY: Final = (
    "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "optim_state_dict", "full_optim_state_dict",
    "full_tensor", "summon_full_params",
)  # fmt: skip


class ShardedSave(ScriptCheck):
    """Looks at calls under a condition on rank 0 which every rank must make, or which save a part of the model each."""

    name: ClassVar[str] = "sharded_save"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: a sharded model (FSDP, DeepSpeed) that only rank 0 saves"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield an error for each save by rank 0 alone of which every rank holds a part."""
        ranks = RankExpressions(script)
        for call, condition in _by_rank_0(script, ranks):
            if what := _needs_everybody(script, call):
                yield finding(
                    self, "error", script.place(call),
                    seen=f"{ast.unparse(call.func)} is called by {condition.words} (line {condition.line}); {what}.",
                    why="Each rank holds a part of the model: rank 0 waits for the others' parts until the time-out, "
                    "or writes a checkpoint that holds its own part alone.",
                    remedy="call it on every rank, and write the file on rank 0 only where the call has gathered the "
                    "whole (full_state_dict); DeepSpeed's and torch's sharded checkpoints are written by all",
                    source="DeepSpeed documentation, Model Checkpointing; PyTorch documentation, FSDP state_dict",
                )  # fmt: skip


def _by_rank_0(script: Script, ranks: RankExpressions) -> Iterator[tuple[ast.Call, Condition]]:
    """Calls under a condition that rank 0 alone fulfils."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.If) and (condition := ranks.condition(node.test)) and condition.key == ZERO:
            for call in calls_in(node.body if condition.positive else node.orelse):
                yield call, condition if condition.positive else condition.negated
    for _, function in script.functions():
        yield from _after_return(function, ranks)


def _after_return(function: Function, ranks: RankExpressions) -> Iterator[tuple[ast.Call, Condition]]:
    """`if rank != 0: return`, and `@rank_zero_only`."""
    only: Condition | None = None
    if ranks.is_for_main_only(function.decorator_list):
        only = Condition(ZERO, True, function.lineno)
    for stmt in function.body:
        if only is not None:
            yield from ((call, only) for call in calls_in([stmt]))
        elif isinstance(stmt, ast.If) and any(isinstance(one, ast.Return) for one in stmt.body):
            condition = ranks.condition(stmt.test)
            if condition and condition.key == ZERO and not condition.positive:
                only = condition.negated


def _needs_everybody(script: Script, call: ast.Call) -> str:
    """Why every rank must make this call; "" when one may."""
    name = script.name_of(call.func)
    receiver, _, last = name.rpartition(".")
    if last in ("save_checkpoint", "save_16bit_model", "save_fp16_model", "load_checkpoint") and _is_engine(
        script, call
    ):
        return "DeepSpeed's engine gathers and writes on every rank"
    if last == "save_checkpoint" and receiver.rpartition(".")[2] in ("trainer", "strategy"):
        return "Lightning's trainer gathers and waits on every rank"
    if last == "save_state" and "accelerator" in receiver:
        return "Accelerate writes every rank's part, and waits for all"
    if (
        last == "get_state_dict"
        and "accelerator" in receiver
        and script.mentions("FullyShardedDataParallelPlugin", "DeepSpeedPlugin")
    ):
        return "it gathers the parameters of all ranks"
    if receiver == "torch.distributed.checkpoint" and last in ("save", "async_save", "load", "save_state_dict"):
        return "torch.distributed.checkpoint writes every rank's part, and all agree on the plan"
    if last in _EVERYBODY and script.mentions(*_FSDP) and "accelerator" not in receiver:
        return "it gathers the parameters of all ranks"
    if last == "state_dict" and isinstance(call.func, ast.Attribute) and _is_fsdp(script, call.func.value):
        return "an FSDP model gathers its parameters from all ranks"
    if (
        last in ("state_dict", "save_pretrained")
        and isinstance(call.func, ast.Attribute)
        and keyword(call, "state_dict") is None
        and _is_partitioned(script, call.func.value)
    ):
        return "under ZeRO-3 the parameters of the module are partitioned, and empty here"
    return ""


def _is_partitioned(script: Script, node: ast.expr) -> bool:
    """Whether this is the module of a DeepSpeed engine whose configuration in this file says ZeRO-3; not where the
    script gathers its parameters."""
    if not isinstance(node, ast.Attribute) or node.attr != "module" or script.mentions("GatheredParameters"):
        return False
    for made in script.values.of(node.value) or ():
        start = made.value if isinstance(made, ast.Subscript) else made
        if isinstance(start, ast.Call) and script.name_of(start.func) == "deepspeed.initialize":
            given = keyword(start, "config") or keyword(start, "config_params")
            return given is not None and _stage(script, given) == 3
    return False


def _stage(script: Script, config: ast.expr) -> object:
    """The stage of ZeRO that a configuration written in the script has; None where nobody sees it."""
    if name := target_name(config):
        changed = any(
            isinstance(one, ast.Subscript)
            and isinstance(one.ctx, ast.Store)
            and ast.unparse(one).startswith(f"{name}[")
            for one in ast.walk(script.tree)
        )
        origins = script.values.of(config) or []
        if changed or len(origins) != 1 or origins[0] is None:
            return None
        config = origins[0]
    zero = _item(config, "zero_optimization")
    stage = _item(zero, "stage") if zero is not None else None
    return stage.value if isinstance(stage, ast.Constant) else None


def _item(node: ast.expr, key: str) -> ast.expr | None:
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return next((value for one, value in pairs if isinstance(one, ast.Constant) and one.value == key), None)


def _is_engine(script: Script, call: ast.Call) -> bool:
    """Whether the receiver is what deepspeed.initialize gave back."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name = target_name(call.func.value)
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Call, ast.Subscript)):
            made = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(made, ast.Call) and script.name_of(made.func) == "deepspeed.initialize":
                targets = [one for target in node.targets for one in _parts(target)]
                if targets and target_name(targets[0]) == name:
                    return True
    return name.rpartition(".")[2] in ("model_engine", "ds_engine", "deepspeed_engine") or (
        script.mentions("initialize") and "deepspeed" in script.text and name.rpartition(".")[2] == "engine"
    )


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _is_fsdp(script: Script, node: ast.expr) -> bool:
    """Whether a name stands for a model that FSDP has wrapped, and for nothing else that was assigned after it."""
    name = target_name(node)
    if not name:
        return False
    wrapped = any(
        isinstance(one, ast.Call) and script.last_name_of(one.func) in _FSDP for one in script.assigned.get(name, [])
    )
    return wrapped or any(
        script.last_name_of(call.func) == "fully_shard" and call.args and target_name(call.args[0]) == name
        for call in script.calls
    )
