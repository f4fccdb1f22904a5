from typing import Any

import pytest

from stallwatch.model.gpu import GpuState
from stallwatch.model.reading import Absent
from stallwatch.node.nvml import DriverError, GpuReader, load_nvml, read_state
from tests.builders.clock import FakeClock
from tests.unit.node.fake_nvml import UUID, FakeNvml


@pytest.mark.parametrize(("code", "text"), [(12, "libnvidia-ml.so.1 not found"), (9, "error 9")])
def test_node_without_a_driver_is_normal_and_said(code: int, text: str) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlInit": code}
    with pytest.raises(Absent, match=f"no GPU on this node: {text}"):
        load_nvml(lambda name: nvml)


def test_node_without_the_binding_is_normal_and_said() -> None:
    def find(name: str) -> Any:
        raise ImportError("No module named 'pynvml'")

    with pytest.raises(Absent, match="pynvml"):
        load_nvml(find)


@pytest.mark.parametrize(("code", "words"), [(999, "internal error"), (18, "different versions"), (17, "error 17")])
def test_driver_that_is_sick_is_an_error_that_says_how(code: int, words: str) -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlInit": code}
    with pytest.raises(DriverError, match=words):
        load_nvml(lambda name: nvml)


def test_values_are_in_their_units() -> None:
    (gpu,) = GpuReader(FakeNvml()).read()
    assert (gpu.uuid, gpu.name, gpu.serial) == (UUID, "NVIDIA H100 80GB HBM3", "1652724032020")
    assert gpu.pci_bus_id == "00000000:00:06.0"
    assert (gpu.power_watts, gpu.power_limit_watts) == (118.917, 700.0)
    assert (gpu.utilization_percent, gpu.memory_used_bytes, gpu.memory_total_bytes) == (
        100,
        1_745_682_432,
        85_520_809_984,
    )
    assert (gpu.sm_clock_mhz, gpu.compute_pids) == (1980, (479, 480))


def test_counters_have_their_names() -> None:
    (gpu,) = GpuReader(FakeNvml()).read()
    assert gpu.throttle_ns is not None
    assert dict(gpu.throttle_ns)["low_utilization"] == 36_778_648_992
    assert dict(gpu.throttle_ns)["hw_thermal"] == 0
    assert gpu.pcie_replays == 3
    assert (gpu.pcie_link, gpu.pcie_link_maximum) == ((5, 8), (5, 16))
    assert (gpu.remap_pending, gpu.remap_failed) == (False, False)
    assert (gpu.recovery_action, gpu.mig, gpu.ecc_uncorrected_total) == (0, False, 0)


def test_field_that_a_board_does_not_have_is_unknown_and_not_zero() -> None:
    (gpu,) = GpuReader(FakeNvml()).read()
    assert gpu.nvlink_errors is None
    nvml = FakeNvml()
    nvml.fields[52] = (0, 3, 7)
    assert GpuReader(nvml).read()[0].nvlink_errors == (("replay", 7),)


@pytest.mark.parametrize("code", [2, 3, 4, 6, 13])
def test_value_that_a_device_does_not_have_is_unknown_and_not_zero(code: int) -> None:
    nvml = FakeNvml()
    nvml.failing = dict.fromkeys(
        ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
         "nvmlDeviceGetFieldValues", "nvmlDeviceGetComputeRunningProcesses"), code
    )  # fmt: skip
    gpu = GpuReader(nvml).read()[0]
    assert gpu.utilization_percent is None
    assert (gpu.ecc_uncorrected_total, gpu.remap_failed, gpu.throttle_ns, gpu.recovery_action) == (None,) * 4
    assert gpu.compute_pids is None
    assert gpu.power_watts == 118.917
    assert gpu.unavailable is None


def test_binding_of_another_age_lacks_values_and_nothing_else() -> None:
    nvml = FakeNvml()
    nvml.lacking = {"nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode", "nvmlDeviceGetSerial"}
    gpu = GpuReader(nvml).read()[0]
    assert (gpu.throttle_ns, gpu.mig, gpu.serial) == (None, None, None)
    assert gpu.pcie_replays == 3  # by its own call


def test_board_split_into_instances_says_so() -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlDeviceGetUtilizationRates": 3}
    nvml._recorded = lambda: {**FakeNvml._recorded(nvml), "nvmlDeviceGetMigMode": [1, 1]}  # type: ignore[method-assign]
    gpu = GpuReader(nvml).read()[0]
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
    sensor = GpuReader(nvml)
    sensor.read()
    nvml.failing = {"nvmlDeviceGetPowerUsage": code}
    lost = sensor.read()[0]
    assert (lost.index, lost.uuid, lost.unavailable_kind) == (0, UUID, kind)
    assert lost.unavailable is not None and words in lost.unavailable
    assert lost.utilization_percent is None


def test_driver_that_was_updated_under_a_job_is_told_from_a_lost_gpu() -> None:
    nvml = FakeNvml()
    sensor = GpuReader(nvml)
    nvml.failing = {"nvmlDeviceGetCount": 18}
    with pytest.raises(DriverError, match="different versions"):
        sensor.read()


def test_dear_calls_are_made_every_ten_seconds_and_for_one_gpu_a_tick() -> None:
    nvml, clock = FakeNvml(devices=3), FakeClock(10**11)
    sensor = GpuReader(nvml, clock.seconds)
    sensor.read()
    assert nvml.calls.count("nvmlDeviceGetFieldValues") == 3  # the first look knows everything
    clock.advance(9.9)
    sensor.read()
    assert nvml.calls.count("nvmlDeviceGetFieldValues") == 3
    for expected in (4, 5, 6, 6):
        clock.advance(1.0)
        sensor.read()
        assert nvml.calls.count("nvmlDeviceGetFieldValues") == expected
    assert nvml.calls.count("nvmlDeviceGetName") == 3
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 18


def test_whose_processes_a_gpu_has_is_asked_when_its_memory_in_use_changes_and_every_five_seconds() -> None:
    nvml, clock = FakeNvml(), FakeClock(10**11)
    sensor = GpuReader(nvml, clock.seconds)

    def pids(seconds: float) -> tuple[int, ...] | None:
        clock.advance(seconds)
        return sensor.read()[0].compute_pids

    assert pids(0.0) == (479, 480)
    nvml.pids = (479,)
    assert pids(1.0) == (479, 480), "nothing says that it is another"
    nvml.memory_used_bytes += 1 << 20
    assert pids(1.0) == (479,)
    nvml.pids = (479, 481)
    assert pids(4.9) == (479,)
    assert pids(0.2) == (479, 481)
    assert nvml.calls.count("nvmlDeviceGetComputeRunningProcesses") == 3


def test_a_gpu_that_answers_again_is_asked_whose_processes_it_has() -> None:
    nvml, clock = FakeNvml(), FakeClock(10**11)
    sensor = GpuReader(nvml, clock.seconds)
    sensor.read()
    nvml.failing, nvml.memory_used_bytes = {"nvmlDeviceGetComputeRunningProcesses": 15}, 0
    assert sensor.read()[0].unavailable_kind == "lost"
    nvml.failing, nvml.pids = {}, (7,)
    assert sensor.read()[0].compute_pids == (7,)


def state(**failing: int) -> GpuState:
    nvml = FakeNvml(devices=2)
    nvml.failing = failing
    return read_state(nvml)


def test_everything_is_read_at_once() -> None:
    told = state()
    assert (told.driver, told.cuda, told.topology) == ("580.159.04", "13.0", ((0, 1, 30),))
    gpu = told.gpus[1]
    assert (gpu.uuid, gpu.power_watts, gpu.pcie_link_maximum) == ("GPU-1", 118.917, (5, 16))
    assert (gpu.nvlinks, gpu.nvlinks_to_switches, gpu.nvlink_bytes_per_second) == ((18, 0), True, 18 * 26_562_000_000)
    assert (gpu.fabric, gpu.compute_capability) == ((3, 0), (9, 0))


def test_links_that_a_board_does_not_have_are_unknown() -> None:
    gpu = state(nvmlDeviceGetNvLinkState=3).gpus[0]
    assert (gpu.nvlinks, gpu.nvlinks_to_switches, gpu.nvlink_bytes_per_second) == (None, None, None)


def test_device_that_is_lost_costs_the_others_nothing() -> None:
    assert [gpu.unavailable_kind for gpu in state(nvmlDeviceGetMemoryInfo=15).gpus] == ["lost", "lost"]


def test_refusal_as_a_whole_is_a_value() -> None:
    assert state(nvmlInit=18).failure_code == 18


def test_what_a_spinning_gpu_occupies_is_read_between_two_looks() -> None:
    nvml = FakeNvml()
    reader = GpuReader(nvml)
    reader.read()
    assert "nvmlGpmSampleGet" not in nvml.calls  # its memory works: so does it
    nvml.memory_percent = 0
    nvml.multiprocessors = [18.1818, 0.758]
    assert [reader.read()[0].multiprocessors_percent for _ in range(3)] == [None, 18.182, 0.758]
    # It worked meanwhile: what was read before tells nothing of now.
    nvml.memory_percent = 40
    assert reader.read()[0].multiprocessors_percent is None
    nvml.memory_percent = 0
    assert [reader.read()[0].multiprocessors_percent for _ in range(2)] == [None, 0.758]


@pytest.mark.parametrize(
    "call", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"]
)
@pytest.mark.parametrize("code", [3, 999])
def test_what_a_gpu_occupies_is_unknown_where_its_driver_does_not_say(call: str, code: int) -> None:
    """Nor is a GPU sick whose counters alone meet an error."""
    nvml = FakeNvml()
    nvml.memory_percent, nvml.failing[call] = 0, code
    reader = GpuReader(nvml)
    for _ in range(3):
        (gpu,) = reader.read()
        assert (gpu.multiprocessors_percent, gpu.unavailable) == (None, None)
