import os
import threading

import pytest

from stallwatch.loop.schedule import Schedule
from stallwatch.loop.wakeup import Wakeup
from tests.unit.loop.fakes import node_clock

LONG = 60.0  # a sleep that nobody ends fails by the test's own time-out


@pytest.fixture
def wakeup() -> Wakeup:
    return Wakeup()


def test_it_ends_a_sleep_from_another_thread_and_rings_once(wakeup: Wakeup) -> None:
    ringing = threading.Thread(target=wakeup.ring)
    ringing.start()
    wakeup.wait(LONG)
    ringing.join()
    wakeup.wait(0.0)
    wakeup.close()


def test_what_can_be_read_ends_a_sleep_too(wakeup: Wakeup) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"news")
    wakeup.wait(LONG, [reading])
    assert os.read(reading, 10) == b"news", "it is left to who waits for it"
    for descriptor in (reading, writing):
        os.close(descriptor)
    wakeup.close()


def test_ringing_for_ever_blocks_nobody(wakeup: Wakeup) -> None:
    for _ in range(100_000):
        wakeup.ring()
    wakeup.wait(LONG)
    wakeup.close()
    wakeup.ring()


def test_a_tick_that_is_hastened_is_not_late_and_the_next_keeps_its_distance() -> None:
    clock = node_clock()
    schedule = Schedule(clock, 1.0)
    schedule.begin()
    schedule.hasten(clock.now_ns + 300_000_000)
    assert schedule.remaining_seconds() == pytest.approx(0.3)
    clock.advance(0.3)
    assert schedule.begin() == 0.0
    assert schedule.remaining_seconds() == pytest.approx(1.0)


def test_nothing_is_put_off_by_haste() -> None:
    clock = node_clock()
    schedule = Schedule(clock, 1.0)
    schedule.begin()
    schedule.hasten(clock.now_ns + 5_000_000_000)
    assert schedule.remaining_seconds() == pytest.approx(1.0)
    clock.advance(0.5)
    schedule.hasten(clock.now_ns - 5)
    assert schedule.remaining_seconds() == 0.0
    assert schedule.begin() == 0.0
