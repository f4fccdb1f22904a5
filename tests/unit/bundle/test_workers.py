"""Children that parse, and one that was started before there was anything to parse."""

import os
from pathlib import Path

import msgspec
import pytest

from stallwatch.bundle import workers
from stallwatch.bundle.child import OpenFile
from stallwatch.bundle.workers import FileTask, Limits, Task, parse_all, start_ahead
from stallwatch.node.worker import Worker


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """When each child was started."""
    found: list[str] = []
    one = workers._worker

    def counted(limits: Limits, when: str = "now") -> Worker:
        found.append(when)
        return one(limits, when)

    monkeypatch.setattr(workers, "_worker", counted)
    monkeypatch.setattr(workers, "_ahead", [])
    return found


def parsed(path: Path, limits: Limits = workers.DEFAULT_LIMITS) -> list[bytes | str]:
    said: list[bytes | str] = []

    def done(value: msgspec.Raw | None, clause: str) -> None:
        said.append(clause if value is None else bytes(value))

    part = OpenFile("usage", "usage.json", 1)
    parse_all([Task([FileTask(part, 0, lambda: os.open(path, os.O_RDONLY), done)])], limits)
    return said


def test_a_child_that_was_started_ahead_takes_the_next_files_and_no_others(tmp_path: Path, started: list[str]) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[")
    start_ahead()
    (said,) = parsed(path)
    assert "form that stallwatch writes" in str(said)
    assert started == ["ahead"]
    assert workers._ahead == []
    assert parsed(path) == [said]
    assert started == ["ahead", "now"]


def test_one_with_other_limits_is_not_taken(tmp_path: Path, started: list[str]) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[")
    start_ahead()
    parsed(path, Limits(seconds=19.0))
    assert started == ["ahead", "now"]
    ((_, worker),) = workers._ahead
    worker.end()


def test_one_that_has_died_meanwhile_costs_no_file(tmp_path: Path, started: list[str]) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[")
    start_ahead()
    ((_, worker),) = workers._ahead
    assert worker.pid is not None
    os.kill(worker.pid, 9)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    (said,) = parsed(path)
    assert "form that stallwatch writes" in str(said)
