from stallwatch.outputs.latest import Latest
from tests.unit.outputs.reports import FakeClock, node_report


def test_the_loop_lives_while_it_publishes_and_is_missed_when_it_stops() -> None:
    clock = FakeClock()
    latest = Latest(clock, tick_seconds=1.0)
    latest.publish(node_report(), ())
    clock.advance(9)
    assert latest.loop_problem() is None
    clock.advance(2)
    assert latest.loop_problem() == "the daemon's loop has published nothing for 11 s"
    assert not latest.ready().ready
    latest.publish(node_report(), ())
    assert latest.loop_problem() is None
    assert latest.ready().ready


def test_slow_ticks_have_more_time() -> None:
    clock = FakeClock()
    latest = Latest(clock, tick_seconds=30.0)
    latest.publish(node_report(), ())
    clock.advance(100)
    assert latest.loop_problem() is None


def test_a_daemon_that_never_looked_is_not_ready_and_after_a_while_not_alive() -> None:
    clock = FakeClock()
    latest = Latest(clock, tick_seconds=1.0)
    assert not latest.ready().ready
    assert latest.loop_problem() is None  # it is starting
    clock.advance(60)
    assert latest.loop_problem() is not None
