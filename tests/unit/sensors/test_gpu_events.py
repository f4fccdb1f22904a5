import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch.model.gpu import GpuEvent
from stallwatch.sensors import gpu_events
from stallwatch.sensors.gpu_events import GpuEvents
from tests.builders.clock import FakeClock
from tests.unit.node.fake_nvml import UUID, FakeNvml, NvmlError


def event(kind: int, data: int, device: str = "handle 0") -> Any:
    return lambda: SimpleNamespace(eventType=kind, eventData=data, device=device)


class Sensed:
    """A sensor over a fake, whose thread has told what the fake had for it and is held in a wait."""

    def __init__(self, nvml: FakeNvml) -> None:
        self.reached = threading.Event()

        def hold() -> Any:
            self.reached.set()
            threading.Event().wait()  # in a thread that ends with us

        nvml.waiting.append(hold)
        self.clock = FakeClock(10**12)
        self.sensor = GpuEvents(lambda: nvml, self.clock.monotonic_ns)
        self.sensor.listen(nvml)
        assert self.reached.wait(20)


def test_xid_is_told_with_its_gpu() -> None:
    nvml = FakeNvml(devices=2)
    nvml.waiting = [event(0x8, 79, "handle 1"), event(0x2, 0)]
    sensed = Sensed(nvml)
    assert sensed.sensor.latest()[0] == (
        GpuEvent("xid", 10**12, "GPU-1", 79),
        GpuEvent("double_bit_ecc", 10**12, UUID),
    )


def test_xid_does_not_wait_for_the_next_tick() -> None:
    nvml = FakeNvml()
    nvml.waiting = [event(0x8, 31)]
    quiet, _ = os.pipe()
    sensed = Sensed(nvml)
    assert sensed.sensor.wait(quiet) is False
    asked, ask = os.pipe()
    os.write(ask, b"1")
    assert sensed.sensor.wait(asked) is True


def test_time_out_is_silence_and_not_an_event() -> None:
    nvml = FakeNvml()

    def time_out() -> Any:
        raise NvmlError(10)

    nvml.waiting = [time_out, time_out]
    sensed = Sensed(nvml)
    assert sensed.sensor.latest() == ((), "")
    assert nvml.registered == [0xF80A]  # of what the board supports, what stops work


def test_old_events_are_forgotten() -> None:
    nvml = FakeNvml()
    nvml.waiting = [event(0x8, 31)]
    sensed = Sensed(nvml)
    sensed.clock.advance(599)
    assert len(sensed.sensor.latest()[0]) == 1
    sensed.clock.advance(2)
    assert sensed.sensor.latest() == ((), "NVML has not given back its event thread for 601 s")


def test_gpus_that_report_no_xids_are_said() -> None:
    nvml = FakeNvml()
    nvml.failing = {"nvmlDeviceGetSupportedEventTypes": 3}
    sensor = GpuEvents(lambda: nvml)
    sensor.listen(nvml)
    assert sensor.latest(20) == ((), "GPU 0 reports no XIDs")


def test_driver_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_events, "_AGAIN_SECONDS", 0.001)
    nvml = FakeNvml()

    def fail() -> Any:
        raise NvmlError(999)

    nvml.waiting = [fail, event(0x8, 74)]
    sensed = Sensed(nvml)
    assert [told.xid for told in sensed.sensor.latest()[0]] == [74]
