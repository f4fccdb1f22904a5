"""NVML as one H100 answered it (driver 580.159.04, nvidia-ml-py 13.615), with the failures that a test asks for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


# fieldId: (nvmlReturn, valueType, value) as recorded; NVLink totals are "not supported" on Hopper.
RECORDED_FIELDS: dict[int, tuple[int, int, int]] = {
    **dict.fromkeys((74, 75, 76, 77, 79, 269, 270, 271), (0, 3, 0)),
    78: (0, 3, 36_778_648_992),
    **dict.fromkeys((38, 45, 52, 59), (3, 0, 0)),
    230: (0, 1, 0),
    94: (0, 1, 3),
    90: (0, 1, 26_562),
}
UUID = "GPU-a0be9941-09a3-7a4c-90d5-9d034e93a93e"


class FakeNvml:
    """`failing` maps a call's name to the code that it raises; `lacking` are calls that this binding does not have."""

    NVMLError = NvmlError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.failing: dict[str, int] = {}
        self.lacking: set[str] = set()
        self.calls: list[str] = []
        self.fields = dict(RECORDED_FIELDS)
        self.waiting: list[Callable[[], Any]] = []  # what nvmlEventSetWait_v2 does, call by call; then it times out
        self.registered: list[int] = []
        self.memory_percent = 40
        self.memory_used_bytes = 1_745_682_432
        self.pids: tuple[int, ...] = (479, 480)
        self.multiprocessors = [18.182]  # of GPM, look by look; the last one stays

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name in self.lacking:
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        self.calls.append(name)
        if name in self.failing:
            raise NvmlError(self.failing[name])
        special: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
            "nvmlDeviceGetUUID": lambda handle: UUID if handle == "handle 0" else f"GPU-{handle[-1]}",
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1980, 2: 2619}[clock],
            "nvmlEventSetWait_v2": self._wait,
            "nvmlGpmSampleAlloc": object,
            "nvmlGpmSampleGet": lambda handle, sample: sample,
            "nvmlGpmMetricsGet": self._gpm,
            "nvmlDeviceGetNvLinkState": lambda handle, link: 1 if link < 18 else self._refuse(2),
            "nvmlDeviceRegisterEvents": lambda handle, types, events: self.registered.append(types),
        }
        if name in special:
            return special[name](*arguments)
        return self._recorded()[name]

    def _recorded(self) -> dict[str, Any]:
        return {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": b"580.159.04",
            "nvmlSystemGetCudaDriverVersion_v2": 13000,
            "nvmlDeviceGetTopologyCommonAncestor": 30,
            "nvmlDeviceGetNvLinkRemoteDeviceType": 2,
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetGpuFabricInfo": None,
            "nvmlDeviceGetCount": self.devices,
            "nvmlDeviceGetName": "NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetSerial": b"1652724032020",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:00:06.0"),
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=self.memory_used_bytes, total=85_520_809_984),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=self.memory_percent),
            "nvmlDeviceGetPowerUsage": 118_917,
            # Of another user's process, in a container, NVML does not say how much it uses.
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in self.pids],
            "nvmlDeviceGetTemperature": 32,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetRemappedRows": (2, 0, 0, 0),
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPcieReplayCounter": 3,
            "nvmlDeviceGetSupportedEventTypes": 0xFF9F,
            "nvmlEventSetCreate": "events",
            "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
        }

    def c_nvmlGpuFabricInfo_t(self) -> Any:  # noqa: N802 - NVML's own name
        return SimpleNamespace(state=3, status=0)

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802 - NVML's own name
        return SimpleNamespace(metrics=[SimpleNamespace()])

    def byref(self, value: Any) -> Any:
        return value

    def _refuse(self, code: int) -> Any:
        raise NvmlError(code)

    def _fields(self, handle: str, wanted: list[int]) -> list[Any]:
        answers = []
        for field in wanted:
            code, kind, value = self.fields.get(field, (3, 0, 0))
            members = SimpleNamespace(dVal=float(value), uiVal=value, ulVal=value, ullVal=value, sllVal=value)
            answers.append(SimpleNamespace(fieldId=field, nvmlReturn=code, valueType=kind, value=members))
        return answers

    def _gpm(self, asked: Any) -> Any:
        assert asked.sample1 is not asked.sample2
        value = self.multiprocessors.pop(0) if len(self.multiprocessors) > 1 else self.multiprocessors[0]
        asked.metrics[0] = SimpleNamespace(metricId=asked.metrics[0].metricId, nvmlReturn=0, value=value)
        return asked

    def _wait(self, events: str, milliseconds: int) -> Any:
        if self.waiting:
            return self.waiting.pop(0)()
        raise NvmlError(10)  # nothing happened within the time
