"""NVML of one GPU that ranks without GPUs are said to share: at full utilisation by kernels that spin, and
a memory controller that does nothing, as in a wait under NCCL. Ranks are known by a variable of theirs."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

_MARK = b"\0CONTROL_GPU=1\0"


class NVMLError(Exception):
    value = 3  # not supported


NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9


def nvmlInit() -> None:  # noqa: N802 - NVML's own names
    return


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    return index


def nvmlDeviceGetUUID(_: int) -> str:  # noqa: N802
    return "GPU-spins"


def nvmlDeviceGetUtilizationRates(_: int) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(gpu=100, memory=0)


def nvmlDeviceGetPowerUsage(_: int) -> int:  # noqa: N802
    return 122_900


def nvmlDeviceGetComputeRunningProcesses(_: int) -> list[SimpleNamespace]:  # noqa: N802
    return [SimpleNamespace(pid=int(pid), usedGpuMemory=1 << 30) for pid in os.listdir("/proc") if _is_ours(pid)]


def _is_ours(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = b"\0" + file.read() + b"\0"
    except OSError:
        return False
    return _MARK in variables and b"\0RANK=" in variables


def __getattr__(name: str) -> int | Callable[..., NoReturn]:
    if name.startswith("NVML_"):
        return 0
    if not name.startswith("nvml"):
        raise AttributeError(name)

    def refuse(*_: object) -> NoReturn:
        raise NVMLError(f"{name}: not supported")

    return refuse
