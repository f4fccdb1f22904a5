"""Versions of the training interpreter: present, compatible, known to hang."""

import platform
from typing import ClassVar

import msgspec

from stallwatch.doctor import data
from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, Severity, count
from stallwatch.doctor.gpu.device_state import gpu_state
from stallwatch.doctor.network.host_names import spans_nodes
from stallwatch.doctor.surroundings import Surroundings, TrainingInterpreter
from stallwatch.doctor.version_numbers import in_range, parse_version
from stallwatch.formats.tested import NEWEST_TESTED, newer_than_tested
from stallwatch.model.reading import Known


def training_of(surroundings: Surroundings) -> TrainingInterpreter:
    """The training interpreter's answer. Raise Undetermined when it gave none, Inapplicable where it has no torch and
    nobody said that it is the one."""
    reading = surroundings.training.ask()
    if not isinstance(reading, Known):
        raise Undetermined(reading.reason)
    if "torch" not in reading.value.versions and not surroundings.question.python_given:
        raise Inapplicable(f"{reading.value.executable} has no torch; name the training interpreter by --python")
    return reading.value


def _build_of(training: TrainingInterpreter) -> TrainingInterpreter:
    """The same, of which `cuda`, `hip` and `nccl` are known. Raise Undetermined where they could not be read."""
    if training.build_unread:
        raise Undetermined(f"what PyTorch was built with could not be read: {training.build_unread}")
    return training


class TorchPresent:
    """Asks the training interpreter, in a child of its own, which torch it has."""

    name: ClassVar[str] = "torch"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "an interpreter without PyTorch, or with a build that cannot use this node's GPUs"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding where it has none, does not answer, or has one that cannot use the GPUs of this node."""
        reading = surroundings.training.ask()
        if not isinstance(reading, Known) and surroundings.question.python_given:
            return (
                finding(
                    self, "error", "--python",
                    seen=f"{reading.reason}.",
                    why="Training starts as slowly, or not at all; a home directory that does not answer is the usual "
                    "reason.",
                    remedy="run it by hand: python -c 'import sys; print(sys.path)', and look at PYTHONPATH and mounts",
                ),
            )  # fmt: skip
        training = training_of(surroundings)
        version = training.versions.get("torch")
        if version is None:
            return (
                finding(
                    self, "error", training.executable,
                    seen="PyTorch is not installed in this interpreter.",
                    why="Training cannot start with it; `torchrun` of another environment may still be found on the "
                    "PATH.",
                    remedy=f"{training.executable} -m pip install torch, or name the right interpreter by --python",
                ),
            )  # fmt: skip
        try:
            gpus = gpu_state(surroundings).gpus
        except (Inapplicable, Undetermined):
            return ()
        build = _build_of(training)
        if not build.cuda and not build.hip:
            return (
                finding(
                    self, "error", f"torch {version}",
                    seen=f"This build of PyTorch has no CUDA, and the node has {count(len(gpus), 'GPU')}.",
                    why="The job runs on the CPU with gloo, or fails at backend=\"nccl\" on this node only.",
                    remedy=f"{training.executable} -m pip install --force-reinstall torch  (without the +cpu index)",
                ),
            )  # fmt: skip
        return ()


class DriverSupportsCuda:
    """Compares major versions alone, for within one a newer toolkit runs on an older driver. Inapplicable to a build
    without CUDA."""

    name: ClassVar[str] = "cuda_driver"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "a driver older than the CUDA that PyTorch was built with"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One error where the CUDA of torch is of a later major version than the driver supports."""
        state, training = gpu_state(surroundings), _build_of(training_of(surroundings))
        driver, torch = parse_version(state.cuda), parse_version(training.cuda)
        if not torch:
            raise Inapplicable("this PyTorch was built without CUDA")
        if not driver:
            raise Undetermined("the driver does not tell which CUDA it supports")
        # Within a major version a newer toolkit runs on an older driver (CUDA minor version compatibility).
        if torch[0] <= driver[0]:
            return ()
        return (
            finding(
                self, "error", f"driver {state.driver}",
                seen=f"PyTorch was built with CUDA {training.cuda}, the driver supports CUDA {state.cuda}.",
                why="CUDA does not start on this node: its ranks fail, and the others wait for them.",
                remedy=f"upgrade the driver, or install PyTorch for CUDA {driver[0]}",
                source="CUDA compatibility guide",
            ),
        )  # fmt: skip


class Compatible:
    """Reads what distributions of the training interpreter require of each other; Undetermined where nobody compared
    them."""

    name: ClassVar[str] = "compatible"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "torch, DeepSpeed, Lightning or accelerate in versions that do not want each other; two NCCLs"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for each requirement that is not met, and for two NCCLs in one interpreter."""
        training = training_of(surroundings)
        found = [
            finding(
                self, "warning", training.executable,
                seen=f"{conflict}.",
                why="What a library was not tested with may fail or hang in a place that says nothing about versions.",
                remedy=f"{training.executable} -m pip install -U {conflict.split()[0]}  (`pip check` shows all)",
            )
            for conflict in training.conflicts
        ]  # fmt: skip
        wheels = [name for name in training.versions if name.startswith("nvidia-nccl-")]
        preload = surroundings.variable("LD_PRELOAD")
        if len(wheels) > 1:
            found.append(
                finding(
                    self, "warning", training.executable,
                    seen=f"Two NCCLs are installed: {', '.join(f'{n} {training.versions[n]}' for n in wheels)}.",
                    why="Which one a rank loads depends on the order of imports; ranks with different NCCLs do not "
                    "meet.",
                    remedy=f"{training.executable} -m pip uninstall the one that PyTorch does not need "
                    f"(cu{training.cuda[:2]} stays)",
                )
            )  # fmt: skip
        if preload and "libnccl" in preload[0]:
            found.append(
                finding(
                    self, "info", preload[1].place,
                    seen=f"LD_PRELOAD={preload[0]} takes the place of PyTorch's NCCL {training.nccl}.",
                    why="Every rank of every node must do so with the same version.",
                    remedy="unset LD_PRELOAD, or set it in the launcher for all nodes",
                )
            )  # fmt: skip
        if training.not_compared and not found:
            raise Undetermined(f"what the frameworks ask of each other was not compared: {training.not_compared}")
        return tuple(found)


class NewerThanTested:
    """Infos: a recorder that changed makes verdicts less sure, and nothing fails of it."""

    name: ClassVar[str] = "newer_than_tested"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = "a PyTorch or NCCL newer than any whose flight recorder stallwatch was tried with"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """An info for torch and NCCL each, if newer than the newest that was tried."""
        training = training_of(surroundings)
        versions = {"torch": training.versions.get("torch", ""), "NCCL": training.nccl}
        return tuple(
            finding(
                self, "info", f"{what} {version}",
                seen=f"The newest {what} that was tried is {'.'.join(map(str, NEWEST_TESTED[what]))}.",
                why="A newer one may record in another way: verdicts from its dumps are called likely at most.",
                remedy="upgrade stallwatch when a release names this version; until then look at the stacks, too",
            )
            for what, version in versions.items()
            if newer_than_tested(what, version)
        )  # fmt: skip


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of data/bugs.toml."""

    what: str  # NCCL, torch, driver
    first: str
    fixed: str  # "": not fixed
    seen: str
    remedy: str
    source: str
    severity: Severity = "warning"
    variable: str = ""
    value: str = ""
    architecture: int = 0
    machine: str = ""  # of the node, as uname -m says it; "": all
    several_nodes: bool = False


class KnownBugs:
    """Looks versions up in bugs.toml, those of the driver only where NVML answers; Undetermined where NCCL's is not
    known."""

    name: ClassVar[str] = "known_bug"
    area: ClassVar[Area] = "frameworks"
    looks_for: ClassVar[str] = (
        "versions of NCCL, PyTorch and the driver with bugs that hang, and the version that fixed them"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A finding for each bug whose range of versions holds the ones here."""
        training = training_of(surroundings)
        try:
            state = gpu_state(surroundings)
            driver, architecture = (
                state.driver,
                max(((gpu.compute_capability or (0,))[0] for gpu in state.gpus), default=0),
            )
        except (Inapplicable, Undetermined):
            driver, architecture = "", None
        versions = {"NCCL": training.nccl, "torch": training.versions.get("torch", ""), "driver": driver}
        bugs = data.entries("bugs.toml", "bug", Bug)
        found = tuple(
            finding(
                self, bug.severity, f"{bug.what} {versions[bug.what]}",
                seen=bug.seen,
                why=f"{bug.what} from {bug.first} on"
                + (f", fixed in {bug.fixed}." if bug.fixed else "; no fixed version is known."),
                remedy=bug.remedy,
                source=bug.source,
            )
            for bug in bugs
            if in_range(versions[bug.what], bug.first, bug.fixed)
            and (not bug.variable or (surroundings.variable(bug.variable) or ("",))[0] == bug.value)
            # A GPU that is not seen here may be on the node that trains.
            and (not bug.architecture or (architecture is not None and architecture >= bug.architecture))
            and bug.machine in ("", platform.machine())
            and (not bug.several_nodes or spans_nodes(surroundings) is not False)
        )  # fmt: skip
        if not found and _build_of(training).cuda and not training.nccl:
            raise Undetermined("NCCL's version is not known: its bugs were not looked up")
        return found
