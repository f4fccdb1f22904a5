from pathlib import Path

import msgspec
import pytest

from stallwatch.formats.gpus import parse
from stallwatch.formats.unreadable import Unreadable
from stallwatch.model.gpu import Gpu, GpuEvent

BUNDLES = Path(__file__).parents[2] / "bundles"


def test_samples_of_a_capture_script() -> None:
    samples = parse((BUNDLES / "nccl-tp_dp" / "nodes" / "node0" / "gpus.json").read_bytes())
    assert len(samples) >= 2
    assert [gpu.index for gpu in samples[0]] == [0, 1, 2, 3]
    assert all(gpu.utilization_percent is not None and gpu.power_watts for gpu in samples[0])
    assert all(gpu.uuid.startswith("GPU-") and gpu.compute_pids for gpu in samples[0])


def test_samples_of_the_daemon() -> None:
    sample = Gpu(0, "GPU-a", utilization_percent=100, power_watts=170.5, compute_pids=(7,), clock_event_reasons=4)
    ((gpu,),) = parse(msgspec.json.encode([[sample]]))
    assert (gpu.utilization_percent, gpu.power_watts, gpu.compute_pids, gpu.clock_event_reasons) == (
        100,
        170.5,
        (7,),
        4,
    )
    assert gpu.temperature_celsius is None, "not said is not zero"


def test_gpu_that_did_not_answer_says_why() -> None:
    ((gpu,),) = parse(msgspec.json.encode([[Gpu(3, "GPU-b", unavailable="GPU is lost")]]))
    assert (gpu.index, gpu.unavailable, gpu.utilization_percent) == (3, "GPU is lost", None)


def test_one_sample_need_not_be_wrapped() -> None:
    assert len(parse(b'[{"index": 0, "uuid": "GPU-a"}]')) == 1


@pytest.mark.parametrize("data", [b"", b"3", b"[3]", b"[[3]]"])
def test_what_is_no_sample_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(Unreadable):
        parse(data)


def test_what_the_driver_told_by_itself_is_read_with_the_gpus_place() -> None:
    events = (GpuEvent("xid", 1, "GPU-a", 79), GpuEvent("double_bit_ecc", 2, "GPU-a"))
    sample = Gpu(0, "GPU-a", pci_bus_id="00000000:3B:00.0", events=events)
    ((gpu,),) = parse(msgspec.json.encode([[sample]]))
    assert (gpu.pci_bus_id, gpu.xids) == ("0000:3b:00", (79,))
