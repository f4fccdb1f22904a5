"""A sample of a job that moves: the look that nothing is kept of, and whose end tells what was compared."""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallwatch.captures.capture_run import CaptureRun
from stallwatch.captures.spec import CaptureState, Compared, Sampling
from stallwatch.config import Config
from stallwatch.config_sections import DriftSection
from stallwatch.model.summary import SampleMemory
from stallwatch.node.privileged_client import Privileged
from tests.programs.privileged import side_that_knows
from tests.unit.outputs.reports import sample

SAMPLING = Sampling(0, 4, SampleMemory())
ANSWER = CaptureState(True, True, compared=Compared(4, (), SampleMemory()))


@pytest.fixture
def side() -> Iterator[Privileged]:
    with side_that_knows() as side:
        yield side


def _begun(side: Privileged, code: str, seconds: float = 30.0) -> CaptureRun:
    """With a keeper that does this, after our imports."""
    command = (sys.executable, "-c", f"import sys, time\nfrom stallwatch.encoding import pack\n{code}")
    config = Config(drift=DriftSection(seconds=seconds))
    return CaptureRun(None, [sample(0)], 1, config, node="", side=side, sampling=SAMPLING, command=command)


def _says(state: CaptureState) -> str:
    return f"sys.stdout.buffer.write(pack({msgspec.json.encode(state)!r}))"


def _waited(run: CaptureRun) -> CaptureState:
    deadline = time.monotonic() + 60
    while not (state := run.poll()).done:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return state


def test_what_the_keeper_says_is_the_result(side: Privileged) -> None:
    assert _waited(_begun(side, _says(ANSWER))) == ANSWER


def test_a_full_or_dead_temporary_directory_costs_no_sample(
    side: Privileged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert _waited(_begun(side, _says(ANSWER))) == ANSWER


@pytest.mark.parametrize("code", ["sys.exit(3)", "print('nonsense')"])
def test_a_keeper_that_fails_is_a_problem(side: Privileged, code: str) -> None:
    state = _waited(_begun(side, code))
    assert state.compared is None
    assert "ended early" in state.problem


def test_a_keeper_that_hangs_is_ended(side: Privileged) -> None:
    state = _waited(_begun(side, "time.sleep(600)", seconds=0.5))
    assert state.compared is None
    assert state.problem


def test_a_sample_that_is_cancelled_is_over_at_once(side: Privileged) -> None:
    run = _begun(side, "time.sleep(600)")
    run.cancel()
    assert run.poll().done
