import pytest

from stallwatch.outputs import latest as module
from stallwatch.outputs.latest import Latest
from stallwatch.outputs.metrics import OLDEST
from tests.builders.clock import FakeClock
from tests.unit.outputs.reports import node_report


def test_the_loop_lives_while_it_publishes_and_is_missed_when_it_stops() -> None:
    clock = FakeClock()
    latest = Latest(clock, tick_seconds=1.0)
    latest.publish(node_report())
    clock.advance(9)
    assert latest.loop_problem() is None
    clock.advance(2)
    assert latest.loop_problem() == "the daemon's loop has published nothing for 11 s"
    assert not latest.ready().ready
    latest.publish(node_report())
    assert latest.loop_problem() is None
    assert latest.ready().ready


def test_slow_ticks_have_more_time() -> None:
    clock = FakeClock()
    latest = Latest(clock, tick_seconds=30.0)
    latest.publish(node_report())
    clock.advance(100)
    assert latest.loop_problem() is None


def test_a_daemon_that_never_looked_is_not_ready_and_after_a_while_not_alive() -> None:
    clock = FakeClock()
    latest = Latest(clock, tick_seconds=1.0)
    assert not latest.ready().ready
    assert latest.loop_problem() is None  # it is starting
    clock.advance(60)
    assert latest.loop_problem() is not None


def test_what_nobody_asks_for_is_not_made_and_what_many_ask_for_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for name in ("render", "rank_list", "incident_list", "readiness"):

        def note(*given: object, name: str = name, real: object = getattr(module, name)) -> object:
            made.append(name)
            return real(*given)  # type: ignore[operator]

        monkeypatch.setattr(module, name, note)
    latest = Latest(FakeClock(), tick_seconds=1.0)
    latest.publish(node_report())
    published = latest.get()
    assert published is not None
    assert made == []
    assert published.text(OLDEST) is None
    for _ in range(3):
        assert published.render(OLDEST) == published.text(OLDEST)
        assert published.ranks
        assert published.incidents
        assert published.readiness.ready
    assert sorted(made) == ["incident_list", "rank_list", "readiness", "render"]
