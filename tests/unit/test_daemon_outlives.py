"""The daemon's loop outlives what fails in it, and what is lost between its parts."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from stallwatch.incidents.engine import Engine, Now
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Action, Captured, Event, Judge, Judged, StartCapture
from stallwatch.loop.actions import ActionRunner
from stallwatch.loop.stage_guard import StageGuard
from stallwatch.loop.usage import OwnUsage
from stallwatch.loop.wakeup import Wakeup
from tests.builders.running_job import four, job_run
from tests.unit.loop.fakes import Bench
from tests.unit.test_daemon import HANG, only_incident


def test_what_it_cannot_read_of_itself_is_unknown_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_handles() -> OwnUsage:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("stallwatch.loop.usage.own_usage", no_handles)
    bench = Bench(tmp_path, HANG).run()
    assert only_incident(bench).severity == "warning"
    assert (bench.latest.daemon_cpu_seconds, bench.latest.daemon_resident_bytes) == (None, None)
    assert any((e.stage, e.name) == ("daemon", "usage") for e in bench.latest.stage_errors)


OUTSIDE_ITS_STAGES = [
    ("stallwatch.loop.notify.ServiceManager.say", "notify"),
    ("stallwatch.loop.actions.ActionRunner.catch_up", "catch_up"),
    ("stallwatch.loop.actions.ActionRunner.poll", "poll"),
    ("stallwatch.loop.ring.SnapshotRing.add", "tick"),
    ("stallwatch.loop.control.ControlService.wishes", "wishes"),
    ("stallwatch.loop.control.ControlService.show", "tick"),
    ("stallwatch.loop.wakeup.Wakeup.wait", "rest"),
    ("stallwatch.incidents.store.IncidentStore.problem", "report"),
    ("tests.unit.loop.fakes.FakePanel.news_descriptors", "rest"),
    ("tests.unit.loop.fakes.FakePanel.news", "news"),
    ("stallwatch.daemon.Daemon.between_ticks", "between_ticks"),
]


@pytest.mark.parametrize(("broken", "where"), OUTSIDE_ITS_STAGES)
def test_the_loop_outlives_whatever_fails_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, where: str
) -> None:
    """As it is when handles or memory are used up: the call that fails is anybody's."""

    bench = Bench(tmp_path, job_run(four(), 3))

    def wait(self: Wakeup, seconds: float, descriptors: object) -> None:
        bench.clock.advance(seconds)

    def fail(*arguments: object, **named: object) -> None:
        bench.clock.advance(1.0)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Wakeup, "wait", wait)
    monkeypatch.setattr(broken, fail)
    monkeypatch.setattr("stallwatch.daemon._POLL_SECONDS", 0.001)
    looks: list[int] = []

    def enough() -> bool:
        looks.append(1)
        if len(looks) == 3:
            bench.daemon.stop()
        return False

    bench.daemon._cannot_go_on = enough
    bench.daemon.run(bench.outputs)
    assert len(looks) == 3
    assert all(output.closed for output in bench.outputs)
    assert where in {error.name for error in bench.daemon._guard.errors()}


def test_the_loop_outlives_its_own_guards_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, stage, asked = Bench(tmp_path, job_run(four(), 3)), StageGuard.stage, 0
    monkeypatch.setattr("stallwatch.daemon._POLL_SECONDS", 0.001)
    monkeypatch.setattr(Wakeup, "wait", lambda self, seconds, descriptors: bench.clock.advance(seconds))

    def fail_at_times(self: StageGuard, where: str, name: str) -> object:
        nonlocal asked
        asked += where == "daemon"
        if asked == 100:
            bench.daemon.stop()
        elif where == "daemon" and asked < 100 and asked % 7 == 0:
            raise MemoryError
        return stage(self, where, name)

    monkeypatch.setattr(StageGuard, "stage", fail_at_times)
    bench.daemon.run(bench.outputs)
    assert asked >= 100
    assert len(bench.outputs[0].reports) > 5
    assert all(output.closed for output in bench.outputs)


@pytest.mark.parametrize("lost", [Captured, Judged])
def test_what_is_lost_between_the_loop_and_the_engine_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: type[Captured | Judged]
) -> None:
    """Memory runs out in the tick that takes in a look or a verdict: nobody was told for ever."""
    advance, failed = Engine.advance, list[str]()

    def fail_once(self: Engine, lives: IncidentTable, events: Sequence[Event], now: Now) -> object:
        if not failed and any(isinstance(event, lost) for event in events):
            failed.append("once")
            raise MemoryError
        return advance(self, lives, events, now)

    monkeypatch.setattr(Engine, "advance", fail_once)
    bench = Bench(tmp_path, job_run(four(stuck_at=20.3), 60)).run()
    assert failed
    assert only_incident(bench).state == "open"
    assert only_incident(bench).severity == "warning"


@pytest.mark.parametrize("lost", [StartCapture, Judge])
def test_what_the_engine_wanted_and_nobody_began_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: type[StartCapture | Judge]
) -> None:
    do, failed = ActionRunner.do, list[str]()

    def fail_once(self: ActionRunner, actions: Sequence[Action]) -> None:
        if not failed and any(isinstance(action, lost) for action in actions):
            failed.append("once")
            raise MemoryError
        do(self, actions)

    monkeypatch.setattr(ActionRunner, "do", fail_once)
    bench = Bench(tmp_path, job_run(four(stuck_at=20.3), 60)).run()
    assert failed
    assert only_incident(bench).state == "open"
    assert only_incident(bench).severity == "warning"
