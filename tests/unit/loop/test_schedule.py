from stallwatch.loop.schedule import Schedule
from tests.unit.loop.fakes import node_clock


def test_a_slow_tick_does_not_push_the_later_ones() -> None:
    clock = node_clock()
    schedule = Schedule(clock, 1.0)
    assert schedule.begin() == 0
    clock.advance(0.7)
    assert round(schedule.remaining_seconds(), 3) == 0.3


def test_lateness_is_known_and_missed_ticks_are_skipped() -> None:
    clock = node_clock()
    schedule = Schedule(clock, 1.0)
    schedule.begin()
    clock.advance(4.25)
    assert schedule.remaining_seconds() == 0
    assert round(schedule.begin(), 3) == 3.25
    assert round(schedule.remaining_seconds(), 3) == 0.75
