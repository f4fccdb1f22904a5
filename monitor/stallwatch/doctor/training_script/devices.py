"""Which GPU a rank takes, and when it says so."""

import ast
import re
from collections.abc import Iterator
from typing import ClassVar, Final

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.training_script.collective_calls import Collectives
from stallwatch.doctor.training_script.rank_conditions import RankExpressions
from stallwatch.doctor.training_script.source import Script, ScriptCheck, calls_in, keyword

_INITS: Final = ("init_process_group", "init_distributed")
_SETS: Final = ("set_device", "set_device_index")
_LOCAL: Final = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'


class LateDevice(ScriptCheck):
    """Compares the order of calls within one function; a group that is given its device, or is gloo's, needs no earlier
    choice."""

    name: ClassVar[str] = "late_device"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: torch.cuda.set_device after the process group was made"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a finding where a GPU is chosen after the process group is made; a warning if one is
        used in between."""
        for _, body in script.scopes():
            calls = list(calls_in(body))
            init = next((call for call in calls if script.last_name_of(call.func) in _INITS), None)
            chosen = [call for call in calls if _is_choice(script, call)]
            if init is None or not chosen or keyword(init, "device_id") is not None:
                continue
            if calls.index(chosen[0]) < calls.index(init) or "gloo" in ast.unparse(init):
                continue
            between = calls[calls.index(init) + 1 : calls.index(chosen[0])]
            used = next((call for call in between if _uses_gpu(script, call)), None)
            by_deepspeed = script.last_name_of(init.func) == "init_distributed"
            yield finding(
                self, "warning" if used is not None or by_deepspeed else "info", script.place(chosen[0]),
                seen=f"{ast.unparse(chosen[0].func)} comes after {script.last_name_of(init.func)} (line {init.lineno})"
                + (f", and line {used.lineno} uses a GPU before it." if used is not None else "."),
                why="Until then every rank of the node stands on GPU 0: what communicates or allocates in between "
                "makes a context there (\"Duplicate GPU detected\", less memory for rank 0), or hangs in a barrier.",
                remedy=f"{_LOCAL} before {script.last_name_of(init.func)}",
                source="PyTorch documentation, init_process_group",
            )  # fmt: skip


class GlobalRankDevice(ScriptCheck):
    """One finding a script; none where ranks are spawned, which are those of one node."""

    name: ClassVar[str] = "device_by_global_rank"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: a GPU chosen by the rank in the job instead of the local rank"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a warning for the first device that is chosen by the rank in the whole job; the other
        lines stand in it."""
        # Spawned ranks are those of one node, unless the script says otherwise.
        if script.calls_any("spawn"):
            return
        ranks = RankExpressions(script)
        wrong = [call for call in script.calls if any(ranks.is_global_rank(one) for one in _device_of(script, call))]
        if wrong:
            wrong.sort(key=lambda call: call.lineno)
            more = ", ".join(dict.fromkeys(str(call.lineno) for call in wrong[1:6] if call.lineno != wrong[0].lineno))
            yield finding(
                self, "warning", script.place(wrong[0]),
                seen=f"{ast.unparse(wrong[0])[:80]} chooses a GPU by the rank in the whole job"
                + (f" (also line {more})." if more else "."),
                why="On the second node rank 8 asks for a GPU 8 that is not there (\"invalid device ordinal\"), and "
                "the others wait for it; on one node it happens to be right.",
                remedy=f"the local rank: {_LOCAL}",
                source="torchrun documentation, LOCAL_RANK",
            )  # fmt: skip


class LateVisibleDevices(ScriptCheck):
    """Compares lines of one file with its first import of torch at the top level."""

    name: ClassVar[str] = "late_visible_devices"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: CUDA_VISIBLE_DEVICES set after torch was imported"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a warning for the first CUDA_VISIBLE_DEVICES that is set after torch was imported."""
        imported = min((node.lineno for node in script.tree.body if _imports_torch(node)), default=None)
        if imported is None:
            return
        for node in _settings_of(script.tree):
            if node.lineno > imported:
                yield finding(
                    self, "warning", script.place(node),
                    seen=f"CUDA_VISIBLE_DEVICES is set in line {node.lineno}, after torch was imported in line "
                    f"{imported}.",
                    why="CUDA reads it once, when it starts: whatever asked for a GPU before that (a library's import "
                    "is enough) has all of them, so ranks meet on one GPU or count devices that others do not.",
                    remedy="set it in the launcher, or before the first import of torch; choose a rank's GPU by "
                    f"{_LOCAL}",
                    source="PyTorch documentation, CUDA semantics",
                )  # fmt: skip
                return


class FewerGpusThanDevices(ScriptCheck):
    """Counts where the script sets CUDA_VISIBLE_DEVICES once, to names that are written out, and says how many ranks it
    starts."""

    name: ClassVar[str] = "gpus_of_trainer"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: fewer GPUs in CUDA_VISIBLE_DEVICES than the script starts ranks"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield an error for each start of more ranks than the GPUs that it names."""
        visible = [one for one in _settings_of(script.tree) if isinstance(one, ast.Assign) and _names_in(one.value)]
        if len(visible) != 1 or not isinstance(visible[0], ast.Assign):
            return
        names = _names_in(visible[0].value)
        for call in script.calls:
            for option in _STARTS.get(script.last_name_of(call.func), ()):
                wanted = _count_of(keyword(call, option))
                if wanted is not None and wanted > len(names):
                    yield finding(
                        self, "error", script.place(call),
                        seen=f"{script.last_name_of(call.func)}({option}=…) starts {count(wanted, 'rank')}, and "
                        f"CUDA_VISIBLE_DEVICES={','.join(names)} (line {visible[0].lineno}) names "
                        f"{count(len(names), 'GPU')}.",
                        why="Some ranks find no GPU of their own (\"invalid device ordinal\"), or two share one; the "
                        "others wait for them.",
                        remedy=f"{option}={len(names)}, or name {wanted} GPUs in CUDA_VISIBLE_DEVICES",
                        source="CUDA programming guide",
                    )  # fmt: skip


# What starts ranks from within a script, and the option that says how many.
_STARTS: Final = {
    "Trainer": ("devices",), "Fabric": ("devices",), "spawn": ("nprocs",), "start_processes": ("nprocs",),
    "notebook_launcher": ("num_processes",),
}  # fmt: skip


def _names_in(node: ast.expr) -> tuple[str, ...]:
    """The GPUs that a constant text names."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return ()
    return tuple(one for one in node.value.replace(" ", "").split(",") if one)


def _count_of(node: ast.expr | None) -> int | None:
    """A number, or how many are listed; None for "auto" and -1."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return len(node.elts)
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0:
        return node.value
    return None


def _is_choice(script: Script, call: ast.Call) -> bool:
    name = script.name_of(call.func)
    return name.rpartition(".")[2] in _SETS and ("cuda" in name or "accelerator" in name.lower())


def _uses_gpu(script: Script, call: ast.Call) -> bool:
    if Collectives(script).of_call(call) is not None or script.last_name_of(call.func) == "cuda":
        return True
    return any("cuda" in ast.unparse(one) for one in (*call.args, *(one.value for one in call.keywords))) and (
        script.last_name_of(call.func) not in ("device", "is_available", "print", "info")
    )


def _device_of(script: Script, call: ast.Call) -> Iterator[ast.expr]:
    """The expressions by which a call chooses a GPU."""
    name = script.name_of(call.func)
    last = name.rpartition(".")[2]
    if _is_choice(script, call) or last in ("cuda", "to"):
        yield from (inner for one in call.args[:1] for inner in _numbers(one))
    elif name == "torch.device":
        yield from (inner for one in call.args[:2] for inner in _numbers(one))
    for word in ("device_ids", "device_id", "output_device"):
        given = keyword(call, word)
        if isinstance(given, (ast.List, ast.Tuple)):
            yield from given.elts
        elif given is not None:
            yield given


def _numbers(node: ast.expr) -> Iterator[ast.expr]:
    """A device's number, also within f"cuda:{rank}"."""
    if isinstance(node, ast.JoinedStr):
        if node.values and isinstance(node.values[0], ast.Constant) and "cuda" in str(node.values[0].value):
            yield from (part.value for part in node.values if isinstance(part, ast.FormattedValue))
    else:
        yield node


def _imports_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import):
        return any(re.match(r"torch(\.|$)|deepspeed(\.|$)", alias.name) for alias in node.names)
    return isinstance(node, ast.ImportFrom) and re.match(r"torch(\.|$)", node.module or "") is not None


def _settings_of(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that set CUDA_VISIBLE_DEVICES in this process' environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            if any(
                re.fullmatch(r"(?:os\.)?environ\['CUDA_VISIBLE_DEVICES'\]", ast.unparse(one)) for one in node.targets
            ):
                yield node
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and re.match(
                r"(?:os\.)?(?:environ\.setdefault|putenv)\('CUDA_VISIBLE_DEVICES'|"
                r"(?:os\.)?environ\.update\(.*CUDA_VISIBLE_DEVICES",
                ast.unparse(node.value),
            )
        ):
            yield node
