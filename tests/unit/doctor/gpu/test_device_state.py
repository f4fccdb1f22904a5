import pytest

from stallwatch.doctor.check import Inapplicable, Undetermined
from stallwatch.doctor.gpu.device_state import DeviceAnswers, DriverAnswers, MemoryErrors, Throttled, gpu_state
from stallwatch.model.gpu import GpuState
from tests.unit.doctor.fakes import FakeGpus, Node, gpus, one


def refusing(code: int, message: str) -> FakeGpus:
    return FakeGpus(GpuState("", "", (), failure=message, failure_code=code))


def test_a_node_without_gpus_is_skipped(node: Node) -> None:
    with pytest.raises(Inapplicable):
        DriverAnswers().look(node.around())
    with pytest.raises(Inapplicable):
        DriverAnswers().look(node.around(gpus=refusing(12, "NVML Shared Library Not Found")))


def test_a_driver_that_does_not_answer_is_an_error_where_there_are_devices(node: Node) -> None:
    node.write("dev/nvidiactl", "")
    around = node.around(gpus=FakeGpus("NVML has not answered for 3.5 s"))
    assert "NVML has not answered for 3.5 s" in one(DriverAnswers().look(around)).seen
    with pytest.raises(Undetermined):  # others do not repeat it, and do not call the node healthy
        DeviceAnswers().look(around)


@pytest.mark.parametrize(
    ("code", "message", "remedy"),
    [
        (18, "Driver/library version mismatch", "reboot the node"),
        (4, "Insufficient Permissions", "/dev/nvidia*"),
        (12, "NVML Shared Library Not Found", "--gpus all"),
        (999, "Unknown Error", "start the container anew"),
        (9, "Driver Not Loaded", "modprobe nvidia"),
        (77, "Something New", "nvidia-smi"),
    ],
)
def test_refusals_of_nvml_have_their_remedy(node: Node, code: int, message: str, remedy: str) -> None:
    node.write("dev/nvidiactl", "")
    found = one(DriverAnswers().look(node.around(gpus=refusing(code, message))))
    assert found.severity == "error"
    assert remedy in found.remedy


def test_a_gpu_that_the_driver_knows_and_nvml_does_not_show_is_told(node: Node) -> None:
    for index in range(3):
        (node.root / f"proc/driver/nvidia/gpus/0000:0{index}:00.0").mkdir(parents=True)
    assert "knows 3 GPUs, NVML shows 2" in one(DriverAnswers().look(node.around(gpus=FakeGpus(gpus())))).seen


def test_healthy_gpus_are_silent(node: Node) -> None:
    around = node.around(gpus=FakeGpus(gpus()))
    assert len(gpu_state(around).gpus) == 2
    for check in (DriverAnswers(), DeviceAnswers(), MemoryErrors(), Throttled()):
        assert check.look(around) == ()


@pytest.mark.parametrize(
    ("check", "change", "severity"),
    [
        (DeviceAnswers(), {"unavailable": "NVML: GPU is lost", "unavailable_kind": "lost"}, "error"),
        (DeviceAnswers(), {"recovery_action": 2}, "error"),
        (MemoryErrors(), {"remap_failed": True}, "error"),
        (MemoryErrors(), {"remap_pending": True}, "warning"),
        (MemoryErrors(), {"ecc_uncorrected_total": 3}, "warning"),
        (Throttled(), {"clock_event_reasons": 0x48}, "warning"),
    ],
)
def test_an_unsound_gpu_is_named(node: Node, check: DeviceAnswers, change: dict[str, object], severity: str) -> None:
    found = one(check.look(node.around(gpus=FakeGpus(gpus({}, change)))))
    assert (found.severity, found.subject) == (severity, "GPU 1 (H100)")


def test_a_power_cap_and_idling_are_no_throttling(node: Node) -> None:
    assert Throttled().look(node.around(gpus=FakeGpus(gpus({"clock_event_reasons": 0x5})))) == ()
