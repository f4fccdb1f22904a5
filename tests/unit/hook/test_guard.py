"""What goes wrong stays inside, is counted and is said once."""

import sys

import pytest

from stallwatch.hook.guard import FAILURES_BEFORE_OFF, Guard, say


def fails() -> None:
    raise RuntimeError("broken")


def test_the_first_failure_is_said_and_all_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard()
    guard.run("status", fails)
    guard.run("facts", fails)
    assert guard.errors == 2
    assert capsys.readouterr().err == "stallwatch: status: RuntimeError: broken (training goes on)\n"


def test_a_part_that_keeps_failing_is_switched_off_and_others_go_on() -> None:
    guard = Guard()
    calls: list[int] = []

    def count() -> None:
        calls.append(1)
        raise RuntimeError

    for _ in range(FAILURES_BEFORE_OFF + 5):
        guard.run("status", count)
    assert len(calls) == FAILURES_BEFORE_OFF
    assert guard.run("facts", lambda: 7) == 7


def test_failures_count_only_in_a_row() -> None:
    guard = Guard()
    for _ in range(FAILURES_BEFORE_OFF * 2):
        guard.run("status", fails)
        guard.run("status", lambda: None)
    assert guard.run("status", lambda: 7) == 7


def test_a_closed_stderr_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    say("anything")
