"""One process for values and events of GPUs: neither waits for the other."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stallwatch.model.gpu import GpuEvent
from stallwatch.model.reading import Absent, Resting
from stallwatch.node.gpu_release import release
from stallwatch.node.nvml import DriverError
from stallwatch.node.worker import GIVE_UP_SECONDS
from stallwatch.sensors.gpus import GpusSensor
from tests.builders.clock import FakeClock
from tests.unit.node.fake_nvml import UUID, FakeNvml

SECONDS = 20.0


class SickNvml(FakeNvml):
    """Its values may hang, until a test ends; an event is told when a test says so."""

    def __init__(self) -> None:
        super().__init__(devices=2)
        self.hangs = False
        self.release, self.tell, self.told = threading.Event(), threading.Event(), threading.Event()

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "nvmlEventSetWait_v2":
            if self.told.is_set():
                threading.Event().wait()  # in a thread that ends with us
            self.tell.wait(SECONDS)
            self.told.set()
            return SimpleNamespace(eventType=0x8, eventData=79, device="handle 1")
        if self.hangs and name == "nvmlDeviceGetPowerUsage":
            self.release.wait(SECONDS)
        return super()._answer(name, arguments)


@pytest.fixture
def nvml() -> Iterator[SickNvml]:
    nvml = SickNvml()
    yield nvml
    nvml.tell.set()
    nvml.release.set()


def test_values_and_events_come_together(nvml: SickNvml) -> None:
    sensor = GpusSensor(SECONDS, lambda: nvml, FakeClock(10**12).seconds)
    look = sensor.read()
    assert [gpu.uuid for gpu in look.gpus] == [UUID, "GPU-1"]
    assert [(part.up, part.required) for part in look.parts] == [(True, True), (True, True)]
    nvml.tell.set()
    assert sensor.wait(quiet()) is False, "it is news"
    first, second = sensor.read().gpus
    assert (first.events, second.events) == ((), (GpuEvent("xid", 10**12, "GPU-1", 79),))


def test_xid_is_told_while_the_driver_answers_nothing_else(nvml: SickNvml) -> None:
    clock = FakeClock(10**12)
    sensor = GpusSensor(SECONDS, lambda: nvml, clock.seconds)
    sensor.read()
    nvml.hangs = True
    sensor._seconds = 0.0
    look = sensor.read()
    assert look.gpus == (), "without events nothing is made up"
    assert (look.values.up, look.values.reason) == (False, "NVML has not answered within 0.0 s")
    nvml.tell.set()
    sensor.wait(quiet())
    clock.advance(40)
    look = sensor.read()
    assert [gpu.unavailable for gpu in look.gpus] == ["NVML has not answered for 40 s"] * 2
    assert (look.gpus[1].xids, look.gpus[1].compute_pids) == ((79,), (479, 480))
    assert (look.values.errors_total, look.events.up) == (2, True)


def test_call_that_hangs_is_made_once_and_its_late_answer_is_dropped(nvml: SickNvml) -> None:
    sensor = GpusSensor(SECONDS, lambda: nvml, FakeClock(10**12).seconds)
    sensor.read()
    nvml.hangs = True
    sensor._seconds = 0.0
    before = nvml.calls.count("nvmlDeviceGetCount")
    for _ in range(3):
        assert not sensor.read().values.up
    nvml.hangs = False
    nvml.release.set()
    sensor._seconds = SECONDS
    assert sensor.read().values.up
    assert nvml.calls.count("nvmlDeviceGetCount") == before + 2, "the one that hung, and the one after"


def test_driver_that_is_silent_for_good_ends_the_process(nvml: SickNvml) -> None:
    clock = FakeClock(10**12)
    ends: list[int] = []
    sensor = GpusSensor(SECONDS, lambda: nvml, clock.seconds, ends.append)
    sensor.read()
    nvml.hangs = True
    sensor._seconds = 0.0
    sensor.read()
    clock.advance(GIVE_UP_SECONDS)
    sensor.read()
    assert ends == []
    clock.advance(1)
    sensor.read()
    assert ends == [1]


def test_node_without_a_driver_is_absent() -> None:
    def find() -> Any:
        raise Absent("no GPU on this node")

    with pytest.raises(Absent, match="no GPU"):
        GpusSensor(SECONDS, find).read()


def test_driver_that_cannot_be_used_is_said_of_both_and_tried_again(nvml: SickNvml) -> None:
    answers: list[Any] = [DriverError("the driver's library and kernel module have different versions"), nvml]

    def find() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sensor = GpusSensor(SECONDS, find)
    look = sensor.read()
    assert all("different versions" in part.reason and part.required for part in look.parts)
    assert all(part.up for part in sensor.read().parts)


def quiet() -> int:
    """A descriptor on which nothing is ever asked."""
    return os.pipe()[0]


def test_a_release_ends_the_reading_before_the_driver_is_asked(nvml: SickNvml, tmp_path: Path) -> None:
    file = tmp_path / "released"
    sensor = GpusSensor(SECONDS, lambda: nvml, FakeClock(10**12).seconds, release_file=str(file))
    assert sensor.read().gpus
    release(file, 900, "12:15", "anna")
    calls = len(nvml.calls)
    with pytest.raises(Resting, match="GPUs are left alone until 12:15 for anna") as rests:
        sensor.read()
    assert len([call for call in nvml.calls[calls:] if call != "nvmlEventSetWait_v2"]) == 0
    assert 0 < rests.value.seconds <= 20
    release(file, 0, "", "")
    assert sensor.read().gpus
