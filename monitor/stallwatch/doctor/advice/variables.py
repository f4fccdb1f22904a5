"""Variables that a job's files set, held to what a running environment is held to."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from stallwatch.doctor.advice.named_files import parts
from stallwatch.doctor.advice.scripts import texts
from stallwatch.doctor.advice.settings import Setting, settings_of
from stallwatch.doctor.check import Check
from stallwatch.doctor.check_result import Area, FindingRecord
from stallwatch.doctor.environment.by_version import RecorderOff
from stallwatch.doctor.environment.combinations import Contradictions
from stallwatch.doctor.environment.known_variables import catalogue
from stallwatch.doctor.environment.syntax import WrongSyntax
from stallwatch.doctor.environment.values import DebugLeftOn, OutOfRange
from stallwatch.doctor.environment.variable_names import (
    InventedVariables,
    RemovedVariables,
    RenamedVariables,
    UnknownVariables,
)
from stallwatch.doctor.surroundings import NamedEnvironment, Surroundings, TrainingInterpreter, TrainingProbe
from stallwatch.doctor.version_numbers import parse_version
from stallwatch.model.reading import Known, Unavailable

# What a file alone decides. Interfaces, ports and devices are those of the node where the job will run.
_CHECKS: tuple[Check, ...] = (
    InventedVariables(), RemovedVariables(), RenamedVariables(), UnknownVariables(), OutOfRange(), WrongSyntax(),
    DebugLeftOn(), RecorderOff(), Contradictions(),
)  # fmt: skip
# harmful_advice tells these, with the better way.
_ADVISED = frozenset((
    "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_ASYNC_ERROR_HANDLING",
))  # fmt: skip


# What a file pins: pip and requirements, conda, PyTorch's own images.
_PINNED: Final = re.compile(r"(?<![\w-])(?:pytorch/pytorch:|torch==|pytorch=)v?(?P<version>\d+\.\d+[\w.+]*)")
_IMAGE: Final = re.compile(
    r"^\s*FROM\s+(?!scratch\b)\S|^\s*-?\s*[\"']?image[\"']?\s*:\s*\S|\b(?:docker|podman|nerdctl)\s+run\b", re.MULTILINE
)


class _OfFile:
    """The interpreter that a file chooses for its job: what is installed here says nothing of it."""

    def __init__(self, torch: str) -> None:
        self._torch = torch

    def ask(self) -> Known[TrainingInterpreter] | Unavailable:
        if not self._torch:
            return Unavailable("the file names an image that does not tell its version of PyTorch", 0)
        return Known(TrainingInterpreter("", "", {"torch": self._torch}), 0)


def _training(text: str) -> TrainingProbe | None:
    """None: the file says nothing of it, and what is installed here may be it."""
    versions = sorted((match["version"] for match in _PINNED.finditer(text)), key=parse_version)
    if versions:  # of several the oldest: what it does not read is not to be advised
        return _OfFile(versions[0])
    return _OfFile("") if _IMAGE.search(text) else None


class VariablesInScripts:
    """Holds what files set to the same rules as environments that are here."""

    name: ClassVar[str] = "variables_in_scripts"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = (
        "variables that scripts, Dockerfiles, YAML and env files set: invented, misspelt, out of range, contradictory"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Whatever the checks of environments would say of what each file sets, at the line that sets it."""
        return tuple(record for path, text in texts(surroundings) for record in self._file(surroundings, path, text))

    def _file(self, surroundings: Surroundings, path: Path, text: str) -> Iterator[FindingRecord]:
        told: set[str] = set()
        for found in _environments(path, text):
            values = {one.name: one.value for one in found}
            around = replace(
                surroundings, environments=(NamedEnvironment(str(path), values, is_file=True),),
                training=_training(text) or surroundings.training,
            )  # fmt: skip
            for check in _CHECKS:
                for record in check.look(around):
                    setting = _meant(found, record)
                    name = setting.name if setting else record.seen
                    if name in told or (check.name == "debug_left_on" and name in _ADVISED):
                        continue
                    if check.name == "unknown_variable" and record.severity == "info":
                        continue  # like no real name: a script's own
                    if check.name == "recorder_off" and setting is None:
                        continue  # of the version, not of this file
                    told.add(name)
                    place = f"{path}:{setting.line}" if setting else str(path)
                    yield msgspec.structs.replace(record, check=self.name, area=self.area, subject=place)


def _environments(path: Path, text: str) -> Iterator[list[Setting]]:
    """Settings that hold together: of a script all, the last of each name; of a guide those of a block, for a guide
    shows one way after the other. What is set to several values is judged with each."""
    of_parts = [[one for one in settings_of(part) if _is_judged(one.name)] for part in parts(path, text)]
    together = of_parts if len(of_parts) > 1 else [[one for settings in of_parts for one in settings]]
    for settings in filter(None, together):
        yield settings
        last = {one.name: one.value for one in settings}
        yield from ([one] for one in settings if one.value != last[one.name])


def _is_judged(name: str) -> bool:
    known = catalogue()
    return name in known.real or name in known.variables or known.is_ours_to_judge(name) or bool(known.meant(name))


def _meant(found: list[Setting], record: FindingRecord) -> Setting | None:
    """The setting of which a record speaks: it begins with it."""
    return next((one for one in reversed(found) if record.seen.startswith((f"{one.name}=", f"{one.name} "))), None)
