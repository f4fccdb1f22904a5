"""The driver and each device: do they answer, are they sound."""

from collections.abc import Iterator
from typing import ClassVar

from stallwatch.diagnosis.logs.remedies_of_gpus import (
    DEVICE_LOST_FROM_CONTAINER,
    LIBRARY_NOT_FOUND,
    MISMATCH,
    NO_PERMISSION,
    NOT_LOADED,
    gpu_words,
)
from stallwatch.doctor.check import Inapplicable, Undetermined, finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.model.gpu import Gpu, GpuState
from stallwatch.model.reading import Known

# nvml.h
_NO_PERMISSION, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _MISMATCH, _UNKNOWN = 4, 9, 12, 18, 999
_RECOVERY = {1: "reset the GPU", 2: "reboot the node", 3: "drain P2P work", 4: "drain, then reset the GPU",
             5: "recover the IMEX domain", 6: "reset the GPU's bus", 7: "reboot the system"}  # fmt: skip


def gpu_state(surroundings: Surroundings) -> GpuState:
    """NVML's answer. Raise Inapplicable where there is no GPU, Undetermined where NVML is silent or refuses: one check
    (driver_answers) tells why, the others only that they could not look."""
    reading = surroundings.gpus.state()
    if not isinstance(reading, Known):
        if has_device_files(surroundings):
            raise Undetermined(reading.reason)
        raise Inapplicable(reading.reason)
    state = reading.value
    if state.failure:
        if state.failure_code in (_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED) and not has_device_files(surroundings):
            raise Inapplicable(f"no NVIDIA GPU on this node ({state.failure})")
        raise Undetermined(f"NVML: {state.failure}")
    if not state.gpus:
        raise Inapplicable("NVML counts no GPU")
    return state


def has_device_files(surroundings: Surroundings) -> bool:
    """Whether the node, or the container, was given NVIDIA devices."""
    return (surroundings.root / "dev/nvidiactl").exists() or bool(
        list((surroundings.root / "proc/driver/nvidia/gpus").glob("*"))
    )


def label(gpu: Gpu) -> str:
    """Return a GPU's index with its model's name, where NVML told it, for people."""
    return f"GPU {gpu.index}" + (f" ({gpu.name})" if gpu.name else "")


class DriverAnswers:
    """Asks NVML once; Inapplicable where it does not answer and there are no device files of GPUs."""

    name: ClassVar[str] = "driver_answers"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = (
        "NVML that is silent, refuses (library mismatch, no permission), or devices lost from a container"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """One error where device files are there and the driver does not answer. Raise Inapplicable where there are
        none."""
        reading = surroundings.gpus.state()
        if not isinstance(reading, Known):
            if not has_device_files(surroundings):
                raise Inapplicable(reading.reason)
            return (
                finding(
                    self, "error", "NVIDIA driver",
                    seen=f"{reading.reason}.",
                    why="A driver that does not answer stops every CUDA call in an uninterruptible wait: the job "
                    "hangs.",
                    remedy="look for the first XID (`dmesg -T | grep -i xid`) and for processes in state D "
                    "(`ps -eo pid,stat,wchan:32,cmd | grep ' D'`); drain the node and reboot it",
                    source="gpu-monitoring-tools#46",
                ),
            )  # fmt: skip
        state = reading.value
        if state.failure:
            record = self._refusal(surroundings, state)
            if record is None:
                raise Inapplicable(f"no NVIDIA GPU on this node ({state.failure})")
            return (record,)
        listed = len(list((surroundings.root / "proc/driver/nvidia/gpus").glob("*")))
        if listed > len(state.gpus):
            return (
                finding(
                    self, "warning", "NVIDIA driver",
                    seen=f"The driver knows {count(listed, 'GPU')}, NVML shows {len(state.gpus)}.",
                    why="A GPU that fell off the bus, or that this container was not given.",
                    remedy="compare `nvidia-smi -L` on the host and here; look for XID 79 in the kernel log",
                ),
            )  # fmt: skip
        return ()

    def _refusal(self, surroundings: Surroundings, state: GpuState) -> FindingRecord | None:
        given = has_device_files(surroundings)
        if state.failure_code in (_LIBRARY_NOT_FOUND, _DRIVER_NOT_LOADED) and not given:
            return None
        words = {
            _MISMATCH: MISMATCH,
            _NO_PERMISSION: NO_PERMISSION,
            _LIBRARY_NOT_FOUND: LIBRARY_NOT_FOUND,
            _DRIVER_NOT_LOADED: NOT_LOADED,
            _UNKNOWN: DEVICE_LOST_FROM_CONTAINER,
        }.get(state.failure_code or 0) or gpu_words(state.failure)
        return finding(
            self, "error", "NVIDIA driver", seen=f"NVML refuses: {state.failure}.", why=words.why, remedy=words.remedy
        )


class DeviceAnswers:
    """Judges each GPU by what NVML says of it alone."""

    name: ClassVar[str] = "device_answers"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "a single GPU that is lost, needs a reset, or asks for recovery"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Findings for each GPU that is lost, needs a reset or asks for recovery."""
        return tuple(record for gpu in gpu_state(surroundings).gpus for record in self._one(gpu))

    def _one(self, gpu: Gpu) -> Iterator[FindingRecord]:
        if gpu.unavailable:
            action = (
                "reset it (`nvidia-smi --gpu-reset`)" if gpu.unavailable_kind == "reset_required" else "reboot the node"
            )
            yield finding(
                self, "error", label(gpu),
                seen=f"{gpu.unavailable}.",
                why="A rank on this GPU fails or hangs, and all others wait for it.",
                remedy=f"drain the node and {action}; exclude the GPU until then (CUDA_VISIBLE_DEVICES)",
                source="nvml.h" if gpu.unavailable_kind != "lost" else "nvml.h; XID 79",
            )  # fmt: skip
        elif gpu.recovery_action:
            yield finding(
                self, "error", label(gpu),
                seen=f"The driver asks: {_RECOVERY.get(gpu.recovery_action, f'action {gpu.recovery_action}')}.",
                why="The GPU has had an error that only this clears (XID 154).",
                remedy=f"drain the node, then {_RECOVERY.get(gpu.recovery_action, 'see nvidia-smi -q')}",
                source="nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
            )  # fmt: skip


class MemoryErrors:
    """Reads each GPU's error counters and the state of its remapped rows, by NVML."""

    name: ClassVar[str] = "gpu_memory_errors"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = (
        "uncorrected ECC errors since the driver started, rows whose remapping is pending or failed"
    )

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Findings for each GPU with uncorrected errors, or rows that wait to be remapped or could not be."""
        return tuple(record for gpu in gpu_state(surroundings).gpus for record in self._one(gpu))

    def _one(self, gpu: Gpu) -> Iterator[FindingRecord]:
        if gpu.remap_failed:
            yield finding(
                self, "error", label(gpu),
                seen="Remapping of a bad memory row has failed.",
                why="The spare rows are used up; the next error ends the job.",
                remedy="take the GPU out of service and have it replaced",
                source="NVIDIA GPU memory error management",
            )  # fmt: skip
        elif gpu.remap_pending:
            yield finding(
                self, "warning", label(gpu),
                seen="A bad memory row waits to be remapped.",
                why="Until a reset the row stays in use and can fail again (XID 63, 94, 95).",
                remedy="drain the node and reset the GPU: nvidia-smi --gpu-reset -i " + str(gpu.index),
                source="NVIDIA GPU memory error management",
            )  # fmt: skip
        elif gpu.ecc_uncorrected_total:
            yield finding(
                self, "warning", label(gpu),
                seen=f"{gpu.ecc_uncorrected_total} uncorrected ECC errors since the driver was loaded.",
                why="A process that touched them was ended (XID 48, 94); results of others are not affected.",
                remedy="drain the node and reset the GPU: nvidia-smi --gpu-reset -i " + str(gpu.index),
                source="NVIDIA GPU memory error management",
            )  # fmt: skip


class Throttled:
    """By NVML's reasons for lowered clocks, those alone that harm a job: an idle GPU lowers them as well."""

    name: ClassVar[str] = "gpu_throttled"
    area: ClassVar[Area] = "gpu"
    looks_for: ClassVar[str] = "a GPU that its hardware, its temperature or its power supply slows down now"

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """A warning for each GPU whose clocks are lowered now for a reason that harms."""
        found = []
        for gpu in gpu_state(surroundings).gpus:
            if reasons := gpu.slowdowns:
                found.append(
                    finding(
                        self, "warning", label(gpu),
                        seen=f"Clocks are lowered: {', '.join(reasons)}.",
                        why="Its rank comes last to every collective, and the whole job runs at its pace.",
                        remedy="check cooling and power (`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`), exclude "
                        "the GPU meanwhile",
                        source="nvml.h, clocks event reasons",
                    )
                )  # fmt: skip
        return tuple(found)
