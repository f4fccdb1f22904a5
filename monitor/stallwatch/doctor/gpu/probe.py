"""NVML's answers as a GpuState: `python -m stallwatch.doctor.gpu.probe` prints it as JSON and may be lost."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from stallwatch.doctor.surroundings import Gpu, GpuState

NO_BINDING = "no binding"  # the first line of the child's answer when nothing can be read, and that is normal
_NO_VALUE = frozenset(
    (2, 3, 4, 6, 13)
)  # nvml.h: invalid argument, not supported, no permission, not found, no function
_MAXIMUM_LINKS = 18


def read_state(nvml: Any) -> GpuState:
    """Given pynvml, return everything that checks ask; a refusal of NVML as a whole is a value too."""
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return GpuState("", "", (), failure=str(error), failure_code=getattr(error, "value", None))
    driver = _text(_value(nvml, nvml.nvmlSystemGetDriverVersion)) or ""
    cuda = _value(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    handles: dict[int, Any] = {}
    gpus = tuple(_gpu(nvml, index, handles) for index in range(count))
    return GpuState(
        driver=driver,
        cuda="" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        gpus=gpus,
        topology=tuple(
            (left, right, level)
            for left in handles
            for right in handles
            if left < right
            and (level := _value(nvml, nvml.nvmlDeviceGetTopologyCommonAncestor, handles[left], handles[right]))
            is not None
        ),
    )


def _gpu(nvml: Any, index: int, handles: dict[int, Any]) -> Gpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        handles[index] = handle
        memory = _value(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        processes = _value(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        rows = _value(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        pci = _value(nvml, nvml.nvmlDeviceGetPciInfo, handle)
        active, inactive = _links(nvml, handle)
        fabric = _fabric(nvml, handle)
        capability = _value(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
        return Gpu(
            index=index,
            uuid=_text(_value(nvml, nvml.nvmlDeviceGetUUID, handle)) or "",
            name=_text(_value(nvml, nvml.nvmlDeviceGetName, handle)) or "",
            pci_bus_id="" if pci is None else (_text(pci.busId) or ""),
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            pids=None if processes is None else tuple(sorted(process.pid for process in processes)),
            clock_event_reasons=_value(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
            ecc_uncorrected_volatile=_value(
                nvml, nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
            remap_pending=None if rows is None else bool(rows[2]),
            remap_failed=None if rows is None else bool(rows[3]),
            pcie_width=_value(nvml, nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            pcie_width_maximum=_value(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
            nvlinks_active=active,
            nvlinks_inactive=inactive,
            fabric_state=None if fabric is None else fabric[0],
            fabric_status=None if fabric is None else fabric[1],
            recovery_action=_recovery_action(nvml, handle),
            cc_major=None if capability is None else capability[0],
        )  # fmt: skip
    except nvml.NVMLError as error:
        return Gpu(index=index, error=str(error), error_code=getattr(error, "value", None))


def _links(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    states = []
    for link in range(_MAXIMUM_LINKS):
        state = _value(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        states.append(bool(state))
    return (sum(states), len(states) - sum(states)) if states else (None, None)


def _fabric(nvml: Any, handle: Any) -> tuple[int, int] | None:
    """State and status of the fabric manager's registration (HGX and newer)."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, nvml.byref(info))
    except (nvml.NVMLError, AttributeError, TypeError):
        return None
    return int(info.state), int(info.status)


def _recovery_action(nvml: Any, handle: Any) -> int | None:
    field = getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return None
    values = _value(nvml, nvml.nvmlDeviceGetFieldValues, handle, [field])
    return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None


def _value(nvml: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """None when there is no such value; raise when the device does not answer (lost, reset required)."""
    try:
        return call(*arguments)
    except nvml.NVMLError as error:
        if getattr(error, "value", None) in _NO_VALUE:
            return None
        raise


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> None:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        sys.stdout.write(f"{NO_BINDING}\n{error}; pip install 'stallwatch[daemon]'")
        return
    sys.stdout.write(msgspec.json.encode(read_state(nvml)).decode())


if __name__ == "__main__":
    main()
