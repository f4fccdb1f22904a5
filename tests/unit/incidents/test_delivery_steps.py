import itertools

import msgspec
import pytest

from stallwatch.incidents.delivery_steps import Step, covered, due, verdict_key
from stallwatch.model.incident import Incident, Severity
from stallwatch.model.verdict import CulpritProcess, Frame, Slowness
from tests.unit.outputs.reports import incident


def tell(lives: list[Incident], minimum: Severity = "warning") -> list[Step]:
    """What is told over the life of an incident, looked at twice at each moment."""
    done: tuple[Step, ...] = ()
    told = []
    for now in lives:
        for _ in range(2):
            step = due(now, done, minimum)
            if step is not None:
                told.append(step)
                done = (*done, *covered(now, step))
    return told


QUIET = incident(severity="none")
WARNING = incident(severity="warning")
CRITICAL = incident(severity="critical")
TAKEN = incident(severity="warning", acknowledged_by="anna")
OVER = incident(severity="critical", state="resolved")


@pytest.mark.parametrize(
    ("lives", "told"),
    [
        ([QUIET], []),
        ([QUIET, incident(severity="none", state="resolved")], []),
        ([QUIET, WARNING, CRITICAL, OVER], ["told", "escalated", "resolved"]),
        ([WARNING, incident(severity="warning", state="resolved")], ["told", "resolved"]),
        ([CRITICAL, OVER], ["told", "resolved"]),
        ([OVER], []),
    ],
)
def test_each_step_is_told_once(lives: list[Incident], told: list[Step]) -> None:
    assert tell(lives) == told


def test_below_the_minimum_nobody_is_told_until_it_rises() -> None:
    assert tell([WARNING, CRITICAL, OVER], "critical") == ["told", "resolved"]


def test_a_muted_incident_is_told_when_the_silence_ends_and_it_still_stands() -> None:
    muted = incident(muted=True)
    assert tell([muted, muted]) == []
    assert tell([muted, CRITICAL]) == ["told"]


def test_an_acknowledged_incident_is_told_so_once_and_not_escalated_but_its_end_is() -> None:
    taken = incident(severity="warning", acknowledged_by="anna")
    worse = incident(severity="critical", acknowledged_by="anna")
    assert tell([WARNING, taken, worse, OVER]) == ["told", "acknowledged", "resolved"]
    assert tell([taken, worse]) == ["told", "acknowledged"]
    assert due(worse, ("told", "acknowledged"), "warning", told_of="not_entered 3") == "updated"


def test_no_history_makes_it_speak_twice_or_end_what_it_never_began() -> None:
    for lives in itertools.product((QUIET, WARNING, CRITICAL, OVER, TAKEN, incident(muted=True)), repeat=4):
        told = tell(list(lives))
        assert len(told) == len(set(told))
        assert not told or told[0] == "told"


def _slow(cost_seconds: float, function: str = "", culprits: tuple[int, ...] = (2,)) -> Incident:
    slow = incident(severity="warning")
    assert slow.report is not None
    process = CulpritProcess(2, frame=Frame("data.py", 41, function) if function else None)
    verdict = msgspec.structs.replace(
        slow.report.verdicts[0],
        cause="slow_rank",
        culprits=culprits,
        culprit_processes=(process,),
        slowness=Slowness(cost_seconds, cost_seconds, cost_seconds, 0.3, 20, 10.0),
    )
    return msgspec.structs.replace(slow, report=msgspec.structs.replace(slow.report, verdicts=(verdict,)))


@pytest.mark.parametrize(
    ("told", "now", "step"),
    [
        (_slow(0.06, "load"), _slow(0.08, "load"), None),
        (_slow(0.06, "load"), _slow(0.1, "load"), "updated"),
        (_slow(0.1, "load"), _slow(0.06, "load"), "updated"),
        (_slow(0.06), _slow(0.06, "load"), "updated"),
        (_slow(0.06, "load"), _slow(0.06, "decode"), "updated"),
        (_slow(0.06, "load"), _slow(0.06), None),
        (_slow(0.06), _slow(0.06, culprits=(1, 2)), "updated"),
    ],
    ids=["about as slow", "slower", "faster", "its line is known", "another line", "no line now", "another rank"],
)
def test_of_a_slow_rank_what_it_costs_and_what_it_does_are_news(
    told: Incident, now: Incident, step: Step | None
) -> None:
    assert due(now, ("told",), "warning", verdict_key(told)) == step


def test_what_an_older_version_told_of_a_slow_rank_is_no_news_by_itself() -> None:
    assert due(_slow(0.06, "load"), ("told",), "warning", "slow_rank 2") is None
