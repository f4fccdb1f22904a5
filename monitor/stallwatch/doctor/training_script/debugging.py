"""Tools for looking for a mistake that were left on."""

import ast
from collections.abc import Iterator
from typing import ClassVar, Final

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.training_script.source import Script, ScriptCheck, is_false, is_true, keyword

_ANOMALY: Final = ("set_detect_anomaly", "detect_anomaly")


class AnomalyDetection(ScriptCheck):
    """What stands under a condition was asked for, and is left out."""

    name: ClassVar[str] = "anomaly_detection"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: autograd's anomaly detection left on"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a warning for each call that turns anomaly detection on for the whole run."""
        asked_for = _under_conditions(script.tree)
        for call in script.calls:
            if _is_on(script, call) and id(call) not in asked_for:
                yield finding(
                    self, "warning", script.place(call),
                    seen=f"{ast.unparse(call)[:80]} is on for the whole run.",
                    why="Every operation keeps its Python stack and every gradient is searched for NaN: steps take a "
                    "multiple of their time, and a NaN on one rank raises there alone, while the others wait for it.",
                    remedy="remove it, or put it behind an option: torch.autograd.set_detect_anomaly(args.debug)",
                    source="PyTorch documentation, Anomaly detection",
                )  # fmt: skip


def _is_on(script: Script, call: ast.Call) -> bool:
    name = script.name_of(call.func)
    if name.rpartition(".")[2] in _ANOMALY and ("autograd" in name or name in _ANOMALY):
        mode = call.args[0] if call.args else keyword(call, "mode")
        if name.endswith("set_detect_anomaly"):
            return is_true(mode)
        return mode is None and not is_false(keyword(call, "check_nan"))
    return name.rpartition(".")[2] in ("Trainer", "Fabric") and is_true(keyword(call, "detect_anomaly"))


def _under_conditions(tree: ast.Module) -> set[int]:
    """Calls that stand in a branch: somebody has chosen them."""
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test)
        for stmt in (*node.body, *node.orelse)
        for inner in ast.walk(stmt)
        if isinstance(inner, ast.Call)
    }
