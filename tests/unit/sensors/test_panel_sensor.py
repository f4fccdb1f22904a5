import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stallwatch.model.reading import Known, Unavailable
from stallwatch.node.children import start_own
from stallwatch.sensors.panel import SupervisedSensor
from tests.builders.clock import FakeClock

Make = Callable[..., SupervisedSensor[int]]


@pytest.fixture
def clock() -> FakeClock:
    """Answers are waited for with the real one."""
    return FakeClock(10**12)


@pytest.fixture
def make(clock: FakeClock) -> Iterator[Make]:
    made: list[SupervisedSensor[int]] = []

    def build(*arguments: str) -> SupervisedSensor[int]:
        command = [sys.executable, str(Path(__file__).with_name("children.py")), *arguments]
        made.append(SupervisedSensor("gpus", "NVML", int, start_own(command), clock, required=False))
        return made[-1]

    yield build
    for sensor in made:
        sensor.close()


def look(sensor: SupervisedSensor[int]) -> Known[int] | Unavailable:
    """A look with all the time that the child needs."""
    sensor.ask()
    deadline = time.monotonic() + 20
    while sensor.descriptor is not None:
        assert time.monotonic() < deadline
        select.select([sensor.descriptor], [], [], 20)
        sensor.collect()
    return sensor.result()


def test_answers_come_from_one_child_that_stays(make: Make) -> None:
    sensor = make("counts")
    readings = [look(sensor) for _ in range(3)]
    assert [reading.value for reading in readings if isinstance(reading, Known)] == [1, 2, 3]
    status = sensor.status()
    assert (status.up, status.reason, status.errors_total, status.required) == (True, "", 0, True)


def test_an_answer_that_is_young_enough_holds_without_a_question_until_its_child_speaks_or_ends(
    make: Make, clock: FakeClock
) -> None:
    sensor = make("counts")
    assert not sensor.is_fresh(5.0)  # nothing was answered yet
    first = look(sensor)
    assert isinstance(first, Known)
    assert sensor.is_fresh(5.0)
    assert not sensor.is_fresh(0.0)
    sensor.rest()
    assert sensor.descriptor is None
    assert sensor.result() == first
    clock.advance(5.0)
    assert not sensor.is_fresh(5.0)
    look(sensor)
    assert sensor.is_fresh(5.0)
    assert sensor.pid is not None
    os.kill(sensor.pid, signal.SIGKILL)
    assert (told := sensor.news_descriptor) is not None
    assert select.select([told], [], [], 20)[0]
    sensor.rest()
    assert isinstance(sensor.result(), Unavailable)
    assert not sensor.is_fresh(5.0)


def test_what_a_sensor_raises_is_the_reason(make: Make) -> None:
    sensor = make("raises")
    reading = look(sensor)
    assert isinstance(reading, Unavailable)
    assert reading.reason == "NVML: OSError: the driver is sick"
    assert sensor.status().errors_total == 1
    assert sensor.pid is not None


def test_child_that_does_not_answer_is_unavailable_since_when_and_not_started_twice(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    sensor = make("hangs", str(tmp_path / "go"))
    sensor.ask()
    pid = sensor.pid
    for seconds in (1, 39):
        clock.advance(seconds)
        assert isinstance(sensor.result(), Unavailable)
        sensor.ask()
    reading = sensor.result()
    assert isinstance(reading, Unavailable)
    assert reading.reason == "NVML has not answered for 40 s"
    assert sensor.pid == pid
    assert sensor.status().errors_total == 3
    assert not sensor.status().up


def test_late_answer_is_dropped(make: Make, tmp_path: Path) -> None:
    sensor = make("hangs", str(tmp_path / "go"))
    sensor.ask()
    assert isinstance(sensor.result(), Unavailable)
    (tmp_path / "go").touch()
    assert sensor.descriptor is not None
    select.select([sensor.descriptor], [], [], 20)
    reading = look(sensor)
    assert isinstance(reading, Known)
    assert reading.value == 2


def test_child_that_hangs_for_a_minute_is_ended(make: Make, clock: FakeClock, tmp_path: Path) -> None:
    sensor = make("hangs", str(tmp_path / "go"))
    sensor.ask()
    clock.advance(61)
    reading = look(sensor)
    assert isinstance(reading, Unavailable)
    assert "ended (signal 9)" in reading.reason
    assert sensor.pid is None


def test_child_that_dies_is_started_again_with_growing_back_off(make: Make, clock: FakeClock) -> None:
    sensor = make("dies")
    reading = look(sensor)
    assert isinstance(reading, Unavailable)
    assert reading.reason == "NVML: its process ended (exit code 7); the next one starts in 1 s"
    look(sensor)
    assert sensor.status().errors_total == 1  # not started again yet
    for expected in ("in 2 s", "in 4 s", "in 8 s"):
        clock.advance(60)
        reading = look(sensor)
        assert isinstance(reading, Unavailable)
        assert reading.reason.endswith(expected)


def test_what_the_node_does_not_have_is_said_and_is_no_error(make: Make, clock: FakeClock) -> None:
    sensor = make("missing")
    assert look(sensor) == Unavailable("no such thing on this node", clock.now_ns)
    for _ in range(3):
        look(sensor)
    status = sensor.status()
    assert (status.up, status.reason, status.errors_total) == (False, "no such thing on this node", 0)


@pytest.mark.parametrize("kind", ["nonsense", "wrong type"])
def test_nonsense_is_an_error_of_the_sensor(make: Make, kind: str) -> None:
    sensor = make(kind)
    sensor.ask()
    assert sensor.descriptor is not None
    select.select([sensor.descriptor], [], [], 20)
    sensor.collect()
    reading = sensor.result()
    assert isinstance(reading, Unavailable)
    assert "answered nonsense" in reading.reason


def test_program_that_is_not_there_is_a_reason(clock: FakeClock) -> None:
    sensor = SupervisedSensor("gpus", "NVML", int, start_own(["/nonexistent/python"]), clock)
    reading = look(sensor)
    assert isinstance(reading, Unavailable)
    assert "cannot be started" in reading.reason


def test_close_ends_a_child_that_hangs(make: Make, tmp_path: Path) -> None:
    sensor = make("hangs", str(tmp_path / "go"))
    sensor.ask()
    pid = sensor.pid
    sensor.close(0.2)
    assert sensor.pid is None
    assert not Path(f"/proc/{pid}").exists()


def test_absence_that_is_told_late_is_absence(make: Make, clock: FakeClock) -> None:
    """A busy machine: the child's imports take longer than the look. It is not started again and again for that."""
    sensor = make("missing")
    sensor.ask()
    assert isinstance(sensor.result(), Unavailable)
    assert sensor.descriptor is not None
    select.select([sensor.descriptor], [], [], 20)
    reasons = set()
    for _ in range(50):
        clock.advance(1)
        sensor.ask()
        reasons.add(str(getattr(sensor.result(), "reason", "")))
    assert reasons == {"no such thing on this node"}
    assert sensor.status().errors_total == 1, "the answer that was not there in time"


def test_news_is_said_once_between_two_looks_and_spoils_no_answer(make: Make) -> None:
    sensor = make("restless")
    look(sensor)
    for reads in (2, 3):
        deadline = time.monotonic() + 20
        while not sensor.news():
            assert time.monotonic() < deadline
            assert sensor.news_descriptor is not None
            select.select([sensor.news_descriptor], [], [], 20)
        descriptor = sensor.news_descriptor
        assert descriptor is not None
        assert not select.select([descriptor], [], [], 0.05)[0], "once is enough"
        assert sensor.news(), "until the next look"
        answer = look(sensor)
        assert isinstance(answer, Known)
        assert answer.value == reads


def test_a_child_that_has_ended_has_no_news(make: Make) -> None:
    sensor = make("dies")
    look(sensor)
    assert not sensor.news()
    assert sensor.news_descriptor is None


def test_a_sensor_that_rests_ends_its_child_and_is_asked_again_when_it_said(
    make: Make, clock: FakeClock, tmp_path: Path
) -> None:
    sensor = make("rests", str(tmp_path / "over"))
    reading = look(sensor)
    assert isinstance(reading, Unavailable)
    assert reading.reason == "it is left alone"
    ended_by = time.monotonic() + 20
    while sensor.pid is not None:
        assert time.monotonic() < ended_by
        sensor.collect()
    status = sensor.status()
    assert (status.up, status.required, status.errors_total) == (False, False, 0), "nobody is alarmed"
    (tmp_path / "over").touch()
    clock.advance(19)
    assert isinstance(look(sensor), Unavailable)
    clock.advance(2)
    assert look(sensor) == Known(1, clock.now_ns)
