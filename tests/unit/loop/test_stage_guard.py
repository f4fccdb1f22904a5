import logging

import pytest

from stallwatch.loop.stage_guard import StageGuard
from stallwatch.model.incident import StageErrors


def test_a_stage_that_raises_is_counted_and_gives_nothing() -> None:
    guard = StageGuard()
    made = 0
    with guard.stage("sensors", "panel"):
        made = 7
    assert made == 7
    for stage, name in (("sensors", "panel"), ("outputs", "slack")):
        with guard.stage(stage, name):
            raise ValueError("rank 3")
    assert guard.errors() == (StageErrors("outputs", "slack", 1), StageErrors("sensors", "panel", 1))


def test_an_error_at_every_tick_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guard = StageGuard()
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            with guard.stage("sensors", "panel"):
                raise ValueError("rank 3")
    assert len(caplog.records) == 10
    assert caplog.records[0].exc_info is not None
    assert "rank 3" in caplog.records[-1].getMessage()


def test_a_request_to_end_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt), StageGuard().stage("sensors", "panel"):
        raise KeyboardInterrupt


def test_the_reserve_is_given_where_there_is_no_memory_and_the_error_is_counted() -> None:
    guard = StageGuard()
    with guard.stage("outputs", "slack"):
        raise ValueError("rank 3")
    assert guard.reserve.is_held()
    with guard.stage("detectors", "step"):
        raise MemoryError
    assert not guard.reserve.is_held()
    assert StageErrors("detectors", "step", 1) in guard.errors()
