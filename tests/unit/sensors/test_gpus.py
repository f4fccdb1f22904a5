import pytest

from stallwatch.sensors.gpus import GpuSensor
from stallwatch.sensors.nvml import DriverError
from tests.unit.sensors.fake_nvml import UUID, FakeNvml


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_values_are_in_their_units() -> None:
    (gpu,) = GpuSensor(FakeNvml()).read()
    assert (gpu.uuid, gpu.name, gpu.serial) == (UUID, "NVIDIA H100 80GB HBM3", "1652724032020")
    assert gpu.pci_bus_id == "00000000:00:06.0"
    assert (gpu.power_watts, gpu.power_limit_watts) == (118.917, 700.0)
    assert (gpu.utilization_percent, gpu.memory_used_bytes, gpu.memory_total_bytes) == (
        100,
        1_745_682_432,
        85_520_809_984,
    )
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz) == (1980, 2619)


def test_process_of_which_the_driver_does_not_tell_the_memory_is_no_process_without_memory() -> None:
    (gpu,) = GpuSensor(FakeNvml()).read()
    assert gpu.compute_pids == (479, 480)
    assert gpu.process_memory_bytes == ((479, 1_233_125_376),)


def test_counters_have_their_names() -> None:
    (gpu,) = GpuSensor(FakeNvml()).read()
    assert gpu.throttle_ns is not None
    assert dict(gpu.throttle_ns)["low_utilization"] == 36_778_648_992
    assert dict(gpu.throttle_ns)["hw_thermal"] == 0
    assert gpu.pcie_replays == 3
    assert (gpu.pcie_link, gpu.pcie_link_maximum) == ((5, 8), (5, 16))
    assert (gpu.remapped_rows, gpu.remap_pending, gpu.remap_failed) == ((2, 0), False, False)
    assert (gpu.recovery_action, gpu.mig, gpu.ecc_uncorrected_total) == (0, False, 0)


def test_field_that_a_board_does_not_have_is_unknown_and_not_zero() -> None:
    (gpu,) = GpuSensor(FakeNvml()).read()
    assert gpu.nvlink_errors is None
    nvml = FakeNvml()
    nvml.fields[52] = (0, 3, 7)
    assert GpuSensor(nvml).read()[0].nvlink_errors == (("replay", 7),)


@pytest.mark.parametrize("code", [2, 3, 4, 6, 13])
def test_value_that_a_device_does_not_have_is_unknown_and_not_zero(code: int) -> None:
    nvml = FakeNvml()
    nvml.failing = dict.fromkeys(
        ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
         "nvmlDeviceGetFieldValues", "nvmlDeviceGetComputeRunningProcesses"), code
    )  # fmt: skip
    gpu = GpuSensor(nvml).read()[0]
    assert gpu.utilization_percent is None
    assert (gpu.ecc_uncorrected_total, gpu.remapped_rows, gpu.throttle_ns, gpu.recovery_action) == (None,) * 4
    assert (gpu.compute_pids, gpu.process_memory_bytes) == (None, None)
    assert gpu.power_watts == 118.917
    assert gpu.unavailable is None


def test_binding_of_another_age_lacks_values_and_nothing_else() -> None:
    nvml = FakeNvml()
    nvml.lacking = {"nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode", "nvmlDeviceGetSerial"}
    gpu = GpuSensor(nvml).read()[0]
    assert (gpu.throttle_ns, gpu.mig, gpu.serial) == (None, None, None)
    assert gpu.pcie_replays == 3  # by its own call


def test_board_split_into_instances_says_so() -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlDeviceGetUtilizationRates": 3}
    nvml._recorded = lambda: {**FakeNvml._recorded(nvml), "nvmlDeviceGetMigMode": [1, 1]}  # type: ignore[method-assign]
    gpu = GpuSensor(nvml).read()[0]
    assert (gpu.mig, gpu.utilization_percent) == (True, None)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (15, "lost", "fallen off the bus"),
        (16, "reset_required", "needs a reset"),
        (10, "timeout", "timed out"),
        (999, "unknown_error", "internal error"),
        (20, "error", "error 20"),
    ],
)
def test_device_that_does_not_answer_keeps_its_place_and_says_how(code: int, kind: str, words: str) -> None:
    nvml = FakeNvml(devices=2)
    sensor = GpuSensor(nvml)
    sensor.read()
    nvml.failing = {"nvmlDeviceGetPowerUsage": code}
    lost = sensor.read()[0]
    assert (lost.index, lost.uuid, lost.unavailable_kind) == (0, UUID, kind)
    assert lost.unavailable is not None and words in lost.unavailable
    assert lost.utilization_percent is None


def test_driver_that_was_updated_under_a_job_is_told_from_a_lost_gpu() -> None:
    nvml = FakeNvml()
    sensor = GpuSensor(nvml)
    nvml.failing = {"nvmlDeviceGetCount": 18}
    with pytest.raises(DriverError, match="different versions"):
        sensor.read()


def test_dear_calls_are_made_every_ten_seconds_and_for_one_gpu_a_tick() -> None:
    nvml, clock = FakeNvml(devices=3), Clock()
    sensor = GpuSensor(nvml, clock)
    sensor.read()
    assert nvml.calls.count("nvmlDeviceGetFieldValues") == 3  # the first look knows everything
    clock.now += 9.9
    sensor.read()
    assert nvml.calls.count("nvmlDeviceGetFieldValues") == 3
    for expected in (4, 5, 6, 6):
        clock.now += 1.0
        sensor.read()
        assert nvml.calls.count("nvmlDeviceGetFieldValues") == expected
    assert nvml.calls.count("nvmlDeviceGetName") == 3
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 18
