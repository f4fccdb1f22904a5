from types import SimpleNamespace
from typing import Any

from stallwatch.doctor.gpu.probe import read_state


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """Two GPUs; `failing` maps a call's name to the code that it raises."""

    NVMLError = NvmlError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230

    def __init__(self, **failing: int) -> None:
        self.failing = failing

    def c_nvmlGpuFabricInfo_t(self) -> Any:  # noqa: N802 - NVML's own name
        return SimpleNamespace(state=3, status=0)

    def byref(self, value: Any) -> Any:
        return value

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 2,
            "nvmlSystemGetDriverVersion": b"580.159",
            "nvmlSystemGetCudaDriverVersion_v2": 12080,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetName": "H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5, total=9),
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
            "nvmlDeviceGetRemappedRows": (0, 1, 1, 0),
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:3B:00.0"),
            "nvmlDeviceGetNvLinkState": 1,
            "nvmlDeviceGetGpuFabricInfo": None,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=0))],
            "nvmlDeviceGetTopologyCommonAncestor": 30,
        }
        if name not in values:
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            if name in self.failing:
                raise NvmlError(self.failing[name])
            return values[name]

        return answer


def test_everything_is_read() -> None:
    state = read_state(FakeNvml())
    assert (state.driver, state.cuda, state.topology) == ("580.159", "12.8", ((0, 1, 30),))
    gpu = state.gpus[0]
    assert (gpu.name, gpu.pids, gpu.remap_pending, gpu.nvlinks_active, gpu.cc_major) == ("H200", (4, 9), True, 18, 9)


def test_a_value_that_a_device_does_not_have_is_not_zero() -> None:
    gpu = read_state(FakeNvml(nvmlDeviceGetNvLinkState=3, nvmlDeviceGetTotalEccErrors=3)).gpus[0]
    assert (gpu.nvlinks_active, gpu.ecc_uncorrected_volatile) == (None, None)


def test_a_lost_device_is_an_error_of_its_own() -> None:
    state = read_state(FakeNvml(nvmlDeviceGetMemoryInfo=15))
    assert [gpu.error_code for gpu in state.gpus] == [15, 15]


def test_a_refusal_as_a_whole_is_a_value() -> None:
    assert read_state(FakeNvml(nvmlInit=18)).failure_code == 18
