import re

import msgspec

from stallwatch.incidents.tally import Tally
from stallwatch.model.incident import IncidentCount, RankView
from stallwatch.model.snapshot import JobKey
from tests.unit.outputs.reports import JOB, incident, sample, view

TWIN = JobKey(JOB.training_job, "127.0.0.1:29500:4:0:none, the 2nd of this name")
YOUNGER = msgspec.structs.replace(sample(0), job=TWIN, pid=9, start_ticks=sample(0).start_ticks + 1)
BOTH = (view(0), view(0, job=TWIN, pid=9))


def together(tally: Tally, looks: int, views: tuple[RankView, ...] = BOTH) -> Tally:
    for _ in range(looks):
        tally = tally.step(views, (sample(0), YOUNGER), ())
    return tally


def test_the_younger_of_two_live_jobs_of_one_name_is_called_otherwise() -> None:
    ((job, label),) = together(Tally(), 6).labels
    assert job == TWIN
    assert re.fullmatch(r"llama-7b#[0-9a-f]{8}", label)


def test_a_job_of_the_same_name_by_another_user_keeps_its_name() -> None:
    theirs = msgspec.structs.replace(JOB, owner="ben")
    assert together(Tally(), 6, (view(0), view(0, job=theirs, pid=9))).labels == ()


def test_the_second_keeps_its_label_when_the_first_has_ended_and_loses_it_when_it_is_gone() -> None:
    tally = together(Tally(), 6)
    after = tally.step((view(0, state="gone"), view(0, job=TWIN, pid=9)), (YOUNGER,), ())
    assert after.labels == tally.labels
    assert after.step((), (), (incident(job=TWIN),)).labels == tally.labels
    assert after.step((), (), ()).labels == ()


def test_a_restart_seen_for_a_moment_beside_the_old_life_keeps_the_name() -> None:
    assert together(Tally(), 3).step((view(0, state="gone"), view(0, job=TWIN, pid=9)), (YOUNGER,), ()).labels == ()


def test_incidents_are_counted_once_and_only_those_of_this_daemon() -> None:
    before = incident(incident_id="llama-7b-0", state="resolved")
    tally = Tally().step((), (), (before,))
    tally = tally.step((), (), (incident(report=None, severity="none", state="suspect"), before))
    assert tally.counts == ()
    for now in (incident(), incident(state="resolved")):
        tally = tally.step((), (), (now, before))
        assert tally.counts == (IncidentCount("llama-7b", "", "not_entered", 1),)
    assert tally.known == frozenset({"llama-7b-0", "llama-7b-1"})
    assert tally.step((), (), ()).known == frozenset()
    assert tally.step((), (), ()).counts == tally.counts
