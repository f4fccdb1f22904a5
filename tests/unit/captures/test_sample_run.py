"""A sample's child that answers, fails, or hangs."""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures.sample_run import SampleRun
from stallwatch.captures.sample_spec import SampleResult
from stallwatch.clock import SystemClock
from stallwatch.diagnosis.drifted import Memory
from stallwatch.node.privileged_client import Privileged
from tests.programs.privileged import side_that_knows
from tests.unit.outputs.reports import sample

RANKS = [sample(0)]
BEFORE = Memory()
ANSWER = SampleResult(4, (), Memory())


class HurriedClock(SystemClock):
    """Everything takes an hour."""

    def __init__(self) -> None:
        self.calls = 0

    def monotonic_ns(self) -> int:
        self.calls += 1
        return self.calls * 3600 * 10**9


@pytest.fixture
def side() -> Iterator[Privileged]:
    with side_that_knows() as side:
        yield side


def _waited(run: SampleRun) -> SampleResult:
    deadline = time.monotonic() + 30
    while (result := run.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


def _python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_what_the_child_prints_is_the_result(side: Privileged) -> None:
    printed = msgspec.json.encode(ANSWER).decode()
    run = SampleRun(
        RANKS, 0, BEFORE, 30, SystemClock(), side, _python(f"import sys; sys.stdin.read(); print({printed!r})")
    )
    assert _waited(run) == ANSWER


def test_a_full_or_dead_temporary_directory_costs_no_sample(
    side: Privileged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    printed = msgspec.json.encode(ANSWER).decode()
    assert _waited(SampleRun(RANKS, 0, BEFORE, 30, SystemClock(), side, _python(f"print({printed!r})"))) == ANSWER


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "print('nonsense')"])
def test_a_child_that_fails_is_a_problem_and_forgets_nothing(side: Privileged, code: str) -> None:
    result = _waited(SampleRun(RANKS, 0, BEFORE, 30, SystemClock(), side, _python(code)))
    assert (result.ranks, result.memory) == (0, BEFORE)
    assert "failed" in result.problem


def test_a_child_that_hangs_is_ended(side: Privileged) -> None:
    run = SampleRun(RANKS, 0, BEFORE, 30, HurriedClock(), side, _python("import time; time.sleep(600)"))
    result = run.poll()
    assert result is not None
    assert "no sample within 30 s" in result.problem
