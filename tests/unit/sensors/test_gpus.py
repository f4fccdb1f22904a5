from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch.sensors import gpus
from stallwatch.sensors.gpus import GpuSensor
from stallwatch.sensors.sensor import Absent


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """Two GPUs as NVML tells them; `failing` maps a call's name to the code that it raises."""

    NVMLError = NvmlError
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []

    def _answer(self, name: str, value: Any) -> Any:
        self.calls.append(name)
        if name in self.failing:
            raise NvmlError(self.failing[name])
        return value

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetUUID": b"GPU-1",
            "nvmlDeviceGetName": "H200",
            "nvmlDeviceGetSerial": "7",
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:3B:00.0"),
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetTotalEccErrors": 3,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=5, total=9),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100),
            "nvmlDeviceGetPowerUsage": 170_500,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=9), SimpleNamespace(pid=4)],
            "nvmlDeviceGetTemperature": 42,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
        }
        return lambda *arguments: self._answer(name, values[name])


def test_values_are_in_their_units() -> None:
    (gpu, _) = GpuSensor(FakeNvml()).read()
    assert (gpu.uuid, gpu.name, gpu.pci_bus_id) == ("GPU-1", "H200", "00000000:3B:00.0")
    assert (gpu.power_watts, gpu.power_limit_watts) == (170.5, 700.0)
    assert (gpu.utilization_percent, gpu.memory_used_bytes, gpu.memory_total_bytes) == (100, 5, 9)
    assert gpu.compute_pids == (4, 9)
    assert (gpu.ecc_uncorrected_total, gpu.clock_event_reasons) == (3, 4)


@pytest.mark.parametrize("code", [2, 3, 4, 6])
def test_value_that_a_device_does_not_have_is_unknown_and_not_zero(code: int) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlDeviceGetUtilizationRates": code, "nvmlDeviceGetTotalEccErrors": code}
    gpu = GpuSensor(nvml).read()[0]
    assert gpu.utilization_percent is None
    assert gpu.ecc_uncorrected_total is None
    assert gpu.power_watts == 170.5
    assert gpu.unavailable is None


def test_device_that_is_lost_keeps_its_place_and_name() -> None:
    nvml = FakeNvml()
    sensor = GpuSensor(nvml)
    sensor.read()
    nvml.failing = {"nvmlDeviceGetPowerUsage": 15}
    lost = sensor.read()[0]
    assert (lost.index, lost.uuid) == (0, "GPU-1")
    assert lost.unavailable == "NVML: error 15"
    assert lost.utilization_percent is None


def test_what_changes_rarely_is_read_rarely() -> None:
    nvml = FakeNvml()
    times = iter((0.0, 1.0, 9.9, 10.0))
    sensor = GpuSensor(nvml, lambda: next(times))
    for _ in range(3):
        sensor.read()
    assert nvml.calls.count("nvmlDeviceGetTotalEccErrors") == 2  # one a device
    assert nvml.calls.count("nvmlDeviceGetName") == 2
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 6
    sensor.read()
    assert nvml.calls.count("nvmlDeviceGetTotalEccErrors") == 4


@pytest.mark.parametrize(("code", "text"), [(12, "libnvidia-ml.so.1 not found"), (9, "error 9")])
def test_node_without_a_driver_is_normal_and_said(code: int, text: str) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlInit": code}
    with pytest.raises(Absent, match=f"no GPU on this node: {text}"):
        gpus.load_nvml(lambda name: nvml)


def test_node_without_the_binding_is_normal_and_said() -> None:
    def find(name: str) -> Any:
        raise ImportError("No module named 'pynvml'")

    with pytest.raises(Absent, match="pynvml"):
        gpus.load_nvml(find)


def test_driver_that_is_sick_is_an_error() -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlInit": 999}
    with pytest.raises(NvmlError):
        gpus.load_nvml(lambda name: nvml)
