import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch.model.gpu import GpuEvent
from stallwatch.model.reading import Absent
from stallwatch.node.nvml import DriverError
from stallwatch.sensors import gpu_events
from stallwatch.sensors.gpu_events import GpuEventsSensor
from tests.unit.node.fake_nvml import UUID, FakeNvml, NvmlError


def event(kind: int, data: int, device: str = "handle 0") -> Any:
    return lambda: SimpleNamespace(eventType=kind, eventData=data, device=device)


class Sensed:
    """A sensor over a fake; afterwards its thread is held in a wait that the test ends."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.reached, self.end = threading.Event(), threading.Event()

        def hold() -> Any:
            self.reached.set()
            self.end.wait(20)
            raise Absent("over")  # ends the thread

        nvml.waiting.append(hold)
        self.now_ns = 10**12
        self.sensor = GpuEventsSensor(lambda: nvml, lambda: self.now_ns)
        self.reached.wait(20)

    def __enter__(self) -> "Sensed":
        return self

    def __exit__(self, *exception: object) -> None:
        self.end.set()


def test_xid_is_told_with_its_gpu() -> None:
    nvml = FakeNvml(devices=2)
    nvml.waiting = [event(0x8, 79, "handle 1"), event(0x2, 0)]
    with Sensed(nvml) as sensed:
        assert sensed.sensor.read() == (
            GpuEvent("xid", 10**12, "GPU-1", 79),
            GpuEvent("double_bit_ecc", 10**12, UUID),
        )


def test_xid_does_not_wait_for_the_next_tick() -> None:
    nvml = FakeNvml()
    nvml.waiting = [event(0x8, 31)]
    quiet, _ = os.pipe()
    with Sensed(nvml) as sensed:
        assert sensed.sensor.wait(quiet) is False
    asked, ask = os.pipe()
    os.write(ask, b"1")
    assert sensed.sensor.wait(asked) is True


def test_time_out_is_silence_and_not_an_event() -> None:
    nvml = FakeNvml()

    def time_out() -> Any:
        raise NvmlError(10)

    nvml.waiting = [time_out, time_out]
    with Sensed(nvml) as sensed:
        assert sensed.sensor.read() == ()
    assert nvml.registered == [0xF80A]  # of what the board supports, what stops work


def test_old_events_are_forgotten() -> None:
    nvml = FakeNvml()
    nvml.waiting = [event(0x8, 31)]
    with Sensed(nvml) as sensed:
        sensed.now_ns += int(599e9)
        assert len(sensed.sensor.read()) == 1
        sensed.now_ns += int(2e9)
        with pytest.raises(DriverError, match="has not given back its event thread for 601 s"):
            sensed.sensor.read()


def test_gpus_that_report_no_xids_are_said() -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlDeviceGetSupportedEventTypes": 3}
    sensor = GpuEventsSensor(lambda: nvml)
    sensor._ready.wait(20)
    with pytest.raises(DriverError, match="GPU 0 reports no XIDs"):
        sensor.read()


def test_node_without_a_driver_is_absent() -> None:
    def find() -> Any:
        raise Absent("no GPU on this node")

    sensor = GpuEventsSensor(find)
    sensor._ready.wait(20)
    with pytest.raises(Absent, match="no GPU"):
        sensor.read()


def test_driver_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_events, "_AGAIN_SECONDS", 0.001)
    nvml = FakeNvml()

    def fail() -> Any:
        raise NvmlError(999)

    nvml.waiting = [fail, event(0x8, 74)]
    with Sensed(nvml) as sensed:
        assert [told.xid for told in sensed.sensor.read()] == [74]
