"""Variables that a job's files set, held to what a running environment is held to."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec

from stallwatch.doctor.advice.scripts import code_lines, texts
from stallwatch.doctor.advice.settings import Setting, settings
from stallwatch.doctor.check import Check
from stallwatch.doctor.environment.catalogue import catalogue
from stallwatch.doctor.environment.names import InventedVariables, RemovedVariables, RenamedVariables, UnknownVariables
from stallwatch.doctor.environment.syntax import WrongSyntax
from stallwatch.doctor.environment.together import Contradictions
from stallwatch.doctor.environment.values import DebugLeftOn, OutOfRange
from stallwatch.doctor.finding import Area, FindingRecord
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings

# What a file alone decides. Interfaces, ports and devices are those of the node where the job will run.
_CHECKS: tuple[Check, ...] = (
    InventedVariables(), RemovedVariables(), RenamedVariables(), UnknownVariables(), OutOfRange(), WrongSyntax(),
    DebugLeftOn(), Contradictions(),
)  # fmt: skip
# harmful_advice tells these, with the better way.
_ADVISED = frozenset((
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING",
))  # fmt: skip


class VariablesInScripts:
    name: ClassVar[str] = "variables_in_scripts"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = (
        "variables that scripts, Dockerfiles, YAML and env files set: invented, misspelt, out of range, contradictory"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        return tuple(record for path, text in texts(surroundings) for record in self._file(surroundings, path, text))

    def _file(self, surroundings: Surroundings, path: Path, text: str) -> Iterator[FindingRecord]:
        known = catalogue()
        found = [
            one
            for one in settings(code_lines(path, text), is_python=path.suffix == ".py")
            if one.name in known.real or one.name in known.variables or known.is_ours_to_judge(one.name)
            or known.meant(one.name)
        ]  # fmt: skip
        values = {one.name: one.value for one in found}
        around = replace(surroundings, environments=(NamedEnvironment(str(path), values, is_file=True),))
        told: set[str] = set()
        for check in _CHECKS:
            for record in check.look(around):
                setting = _meant(found, record)
                if setting and (setting.name in told or (check.name == "debug_left_on" and setting.name in _ADVISED)):
                    continue
                if check.name == "unknown_variable" and record.severity == "info":
                    continue  # like no real name: a script's own
                told.add(setting.name if setting else "")
                place = f"{path}:{setting.line}" if setting else str(path)
                yield msgspec.structs.replace(record, check=self.name, area=self.area, subject=place)


def _meant(found: list[Setting], record: FindingRecord) -> Setting | None:
    """The setting of which a record speaks: it begins with it."""
    return next((one for one in reversed(found) if record.seen.startswith((f"{one.name}=", f"{one.name} "))), None)
