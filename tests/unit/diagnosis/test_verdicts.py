"""One analysis: a report says what the judgement found on its way, and works nothing out again."""

from collections.abc import Callable

import pytest

from stallwatch.bundle.report import make_report
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.activity.threads import looks
from stallwatch.diagnosis.recorder.operations import read_recorded_calls
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

STEPS = loop(world(3), 5)
JOB = evidence(*(Rank(r, STEPS, len(STEPS) - 1, frames=SLEEPS) for r in range(2)), Rank(2, STEPS[:-1], frames=SLEEPS))


def test_a_report_reads_each_recorder_and_each_rank_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            read.append(name)
            return function(*arguments)

        return call

    monkeypatch.setattr(
        "stallwatch.diagnosis.recorder.reduce.read_recorded_calls", counted("recorder", read_recorded_calls)
    )
    monkeypatch.setattr("stallwatch.diagnosis.activity.rank_reading.looks", counted("rank", looks))
    make_report(JOB)
    assert read.count("rank") == 3
    assert read.count("recorder") == sum(len(rank.recorders) for rank in JOB.ranks) == 6


def test_a_report_tells_the_judgements_verdict_deadline_and_stacks() -> None:
    judgement, report = judge(JOB), make_report(JOB)
    assert report.verdicts == judgement.verdicts
    assert report.stacks is not None and report.stacks.count == len(judgement.activities)
    assert report.deadline is not None
