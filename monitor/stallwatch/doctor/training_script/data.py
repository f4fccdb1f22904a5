"""How ranks share their data: the same samples everywhere, one order in every epoch, more batches here than there."""

import ast
import re
from collections.abc import Iterator
from typing import ClassVar, Final

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.training_script.loops import WHOLE, bare, goes_over_data_again, has_backward
from stallwatch.doctor.training_script.rank_conditions import RankExpressions
from stallwatch.doctor.training_script.source import (
    Script,
    ScriptCheck,
    has_open_keywords,
    is_false,
    is_true,
    keyword,
    target_name,
)

_LOADERS: Final = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader", "DataLoader")
_SAMPLER: Final = "DistributedSampler"
_SET_EPOCH: Final = "set_epoch"
# Loaders of what is measured may hold the whole on every rank.
_MEASURED: Final = re.compile(
    r"(?<![a-z])(?:val(?:id\w*)?|test\w*|eval\w*|dev|infer\w*|predict\w*|calib\w*)(?![a-z])", re.IGNORECASE
)
# What shares data in another way, or needs the same data on several ranks.
_OTHER_WAYS: Final = (
    "IterableDataset", "WebDataset", "WebLoader", "split_dataset_by_node", "StatefulDataLoader", "prepare",
    "setup_dataloaders", "parallelize_module", "PipelineStage", "init_device_mesh", "DeviceMesh", "split_by_node",
    "ParallelMode", "get_tensor_model_parallel_rank", "StreamingDataset", "prepare_data_loader", "Join",
)  # fmt: skip


class UnshardedLoader(ScriptCheck):
    """Leaves out scripts whose trainer shards by itself, loaders for measuring, and data that knows of ranks."""

    name: ClassVar[str] = "unsharded_loader"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: a DataLoader of a data-parallel job without a distributed sampler"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a warning for each loader of training data that every rank reads whole."""
        if not script.is_data_parallel or script.has_trainer or script.mentions(*_OTHER_WAYS):
            return
        for call, name in _loaders(script):
            given = ("sampler", "batch_sampler")
            if any(keyword(call, one) for one in given) or len(call.args) > 3 or has_open_keywords(call):
                continue
            dataset = _dataset(call)
            if _MEASURED.search(name) or dataset is None or _MEASURED.search(ast.unparse(dataset)):
                continue
            shuffled = is_true(keyword(call, "shuffle"))
            if _knows_ranks(script, dataset, shuffled):
                continue
            yield finding(
                self, "warning", script.place(call),
                seen=f"{name or 'A DataLoader'} has no distributed sampler: every rank reads the whole data set.",
                why="The ranks draw from the same samples (with one seed the very same batches): an epoch is world_size"
                " times as long as it seems, and more ranks do not train faster.",
                remedy="sampler = DistributedSampler(dataset); DataLoader(dataset, sampler=sampler, …)"
                + (" without shuffle=True" if shuffled else "") + "; sampler.set_epoch(epoch) in every epoch",
                source="PyTorch documentation, DistributedSampler",
            )  # fmt: skip


class SamplerEpoch(ScriptCheck):
    """Leaves out scripts with a trainer, samplers that do not shuffle, and those for measuring."""

    name: ClassVar[str] = "sampler_epoch"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: a DistributedSampler without set_epoch in the loop over epochs"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a warning for each shuffling sampler that is not told the epoch, or always the same."""
        if script.has_trainer or not goes_over_data_again(script):
            return
        told = [call for call in script.calls if _tells_epoch(script, call)]
        for call in script.calls:
            if script.last_name_of(call.func) != _SAMPLER or has_open_keywords(call):
                continue
            name = _assigned_to(script, call)
            if is_false(keyword(call, "shuffle")) or _MEASURED.search(f"{name} {ast.unparse(call)}"):
                continue
            if any(not _is_of_another(script, one, call) for one in told):
                continue
            constant = next((one for one in script.calls if script.last_name_of(one.func) == _SET_EPOCH), None)
            said = "set_epoch is nowhere called"
            if told:
                said = "set_epoch is called on other samplers only"
            elif constant is not None:
                said = f"set_epoch gets the same number in every epoch (line {constant.lineno})"
            yield finding(
                self, "warning", script.place(call),
                seen=f"{name or 'The DistributedSampler'} shuffles, and {said}.",
                why="Every epoch then has the same order: the sampler's seed is the epoch's number.",
                remedy=f"{name or 'sampler'}.set_epoch(epoch) at the beginning of each epoch, before the loader is "
                "iterated",
                source="PyTorch documentation, DistributedSampler",
            )  # fmt: skip


class UnevenShards(ScriptCheck):
    """Leaves out scripts that make the numbers of batches equal, or let them differ (Join), and loaders that drop the
    last batch."""

    name: ClassVar[str] = "uneven_shards"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "in training scripts: data cut by rank into parts of different lengths, without drop_last"
    )

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a finding for each loader or loop whose number of batches depends on the rank."""
        # What makes the numbers of batches equal, or lets them differ.
        if not script.is_data_parallel or script.has_trainer or script.mentions("Join", "islice", "join"):
            return
        for call, name in _loaders(script):
            if is_true(keyword(call, "drop_last")) or has_open_keywords(call) or _MEASURED.search(name):
                continue
            dataset = _dataset(call)
            cut = next(_cuts(script, dataset), None) if dataset is not None else None
            if cut is None or not _is_iterated(script, name):
                continue
            yield self._found(script, call, name, cut)
        for loop in ast.walk(script.tree):
            if isinstance(loop, (ast.For, ast.AsyncFor)) and (cut := _trained_cut(script, loop)) is not None:
                yield self._found(script, loop, "The loop", cut)

    def _found(self, script: Script, at: ast.Call | ast.stmt, who: str, cut: ast.expr) -> FindingRecord:
        return finding(
            self, "warning", script.place(at),
            seen=f"{who} reads what line {cut.lineno} cuts by rank ({ast.unparse(cut)[:80]}): the parts differ in "
            "length by one.",
            why="A rank with one batch less leaves the loop earlier, and the others wait for it in backward.",
            remedy="DistributedSampler makes the parts equal; or cut the list to a multiple of world_size before, "
            "and DataLoader(drop_last=True); or train under torch.distributed.algorithms.join.Join",
            source="PyTorch documentation, Distributed Training with Uneven Inputs",
        )  # fmt: skip


def _tells_epoch(script: Script, call: ast.Call) -> bool:
    """Whether a call gives a sampler, or who has one, the number of an epoch that changes."""
    given = call.args[0] if call.args else keyword(call, "epoch")
    return script.last_name_of(call.func) == _SET_EPOCH and given is not None and not isinstance(given, ast.Constant)


def _is_of_another(script: Script, told: ast.Call, sampler: ast.Call) -> bool:
    """Whether set_epoch is called on a sampler that surely is not this one: it is named, and made by another call."""
    if not isinstance(told.func, ast.Attribute) or not (name := target_name(told.func.value)):
        return False
    made = script.assigned.get(name, [])
    calls = [one for one in made if isinstance(one, ast.Call) and script.last_name_of(one.func) == _SAMPLER]
    return len(made) == len(calls) > 0 and sampler not in calls


def _loaders(script: Script) -> Iterator[tuple[ast.Call, str]]:
    """Every DataLoader of torch, with the name that it is given ("" for none)."""
    for call in script.calls:
        if script.name_of(call.func) in _LOADERS:
            yield call, _assigned_to(script, call)


def _assigned_to(script: Script, call: ast.Call) -> str:
    return next((name for name, values in script.assigned.items() if any(one is call for one in values)), "")


def _dataset(call: ast.Call) -> ast.expr | None:
    return call.args[0] if call.args else keyword(call, "dataset")


def _sources(script: Script, node: ast.expr, depth: int = 4) -> Iterator[ast.expr]:
    """An expression and everything that was assigned to the names in it."""
    yield node
    if depth == 0:
        return
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute, ast.Call)):
            for value in script.values.of(inner) or ():
                if value is not None and value is not node:
                    yield from _sources(script, value, depth - 1)


def _knows_ranks(script: Script, dataset: ast.expr, shuffled: bool) -> bool:
    """Whether the data set was made with the rank or the number of ranks in hand, or comes from nobody knows where."""
    ranks = RankExpressions(script)
    for source in _sources(script, dataset):
        for inner in ast.walk(source):
            if isinstance(inner, ast.expr) and (ranks.is_rank(inner) or ranks.is_world_size(inner)):
                return True
    # Made elsewhere: a shuffled one is a whole data set nevertheless, for an iterable one cannot be shuffled.
    return bool(name := target_name(dataset)) and name not in script.assigned and not shuffled


def _cuts(script: Script, dataset: ast.expr) -> Iterator[ast.expr]:
    """Where the data was cut by rank: `files[rank::world_size]`, `range(rank, n, world_size)`, `shard(world, rank)`."""
    ranks = RankExpressions(script)
    for source in _sources(script, dataset):
        for inner in ast.walk(source):
            if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Slice):
                part = inner.slice
                cut = part.upper is None and part.lower is not None and _steps_over(ranks, part.lower, part.step)
                if cut and not _is_even(script, inner.value, part.step):
                    yield inner
            elif isinstance(inner, ast.Call):
                last = script.last_name_of(inner.func)
                if last in ("range", "arange") and len(inner.args) == 3:
                    first, end, step = inner.args
                    if _steps_over(ranks, first, step) and not _is_even(script, end, step):
                        yield inner
                elif last == "shard" and any(ranks.is_rank(one) for one in _arguments(inner)):
                    yield inner


def _trained_cut(script: Script, loop: ast.For | ast.AsyncFor) -> ast.expr | None:
    """The cut by rank that a loop with a backward pass goes over to its end: `for f in files[rank::world]`, or a name
    that nothing else is assigned to and nothing lengthens."""
    node = bare(script, loop.iter, WHOLE)
    if isinstance(node, ast.Name):
        origins = script.values.of(node) or []
        made = origins[0] if len(origins) == 1 else None
        if made is None or any(
            isinstance(one.func, ast.Attribute) and target_name(one.func.value) == node.id for one in script.calls
        ):
            return None
        node = made
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Slice):
        return None
    if any(isinstance(one, ast.Break) for one in ast.walk(loop)) or not has_backward(script, loop.body):
        return None
    # Whoever asks for the remainder knows of it.
    ranks = RankExpressions(script)
    if any(
        isinstance(one, ast.BinOp) and isinstance(one.op, ast.Mod) and ranks.is_world_size(one.right)
        for one in ast.walk(script.tree)
    ):
        return None
    return next((one for one in _cuts(script, node) if one is node), None)


def _steps_over(ranks: RankExpressions, first: ast.expr, step: ast.expr | None) -> bool:
    """Whether somebody begins at his rank and goes over those of all others."""
    return step is not None and not isinstance(step, ast.Constant) and ranks.is_rank(first)


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(one.value for one in call.keywords)]


def _is_even(script: Script, node: ast.expr, ranks_of_all: ast.expr | None) -> bool:
    """Whether what is cut was made a multiple of the number of ranks before ("n // world_size * world_size")."""
    ranks = RankExpressions(script)
    whole = ast.unparse(ranks_of_all) if ranks_of_all else ""
    return any(
        isinstance(inner, ast.BinOp)
        and isinstance(inner.op, (ast.FloorDiv, ast.Mod))
        and (ast.unparse(inner.right) == whole or ranks.is_world_size(inner.right))
        for source in _sources(script, node)
        for inner in ast.walk(source)
    )


def _is_iterated(script: Script, name: str) -> bool:
    """Whether a loop runs over this loader to its end."""
    return bool(name) and any(
        isinstance(node, (ast.For, ast.AsyncFor))
        and re.search(rf"(?<![\w.]){re.escape(name)}\b", ast.unparse(node.iter))
        and "islice" not in ast.unparse(node.iter)
        for node in ast.walk(script.tree)
    )  # fmt: skip
