"""The call that makes the process group, and its device."""

import ast
from collections.abc import Iterator
from typing import ClassVar

from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.training_script.source import Script, ScriptCheck, has_open_keywords, keyword


class ProcessGroupCall(ScriptCheck):
    """Only where the backend is written out as NCCL and nothing in the script chooses a device."""

    name: ClassVar[str] = "training_calls"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "in training scripts: init_process_group without a device"

    def of_script(self, script: Script) -> Iterator[FindingRecord]:
        """Given a script, yield a warning for each NCCL group that is made while nothing says which GPU a rank uses."""
        binds = script.calls_any("set_device", "set_default_device", "set_device_index")
        for call in script.calls:
            if script.last_name_of(call.func) != "init_process_group" or has_open_keywords(call):
                continue
            given = keyword(call, "backend") or (call.args[0] if call.args else None)
            backend = given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""
            if "nccl" in backend and keyword(call, "device_id") is None and not binds:
                yield finding(
                    self, "warning", script.place(call),
                    seen="init_process_group(\"nccl\") without device_id, and torch.cuda.set_device is nowhere called.",
                    why="Every rank then begins on GPU 0: \"Duplicate GPU detected\", or barrier() guesses a device "
                    "and hangs.",
                    remedy="torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"])) before it",
                    source="PyTorch documentation, init_process_group",
                )  # fmt: skip
