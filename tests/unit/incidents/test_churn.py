"""A user chooses his jobs' names, and has as many as he likes: what is kept by name has an end."""

import msgspec

from stallwatch.incidents.life import numbered
from stallwatch.incidents.tally import OTHERS, Tally
from stallwatch.model.snapshot import JobKey
from tests.unit.outputs.reports import incident


def job(number: int, owner: str = "bob") -> JobKey:
    return JobKey(f"job-{number}", "epoch", owner)


def test_how_many_incidents_a_job_has_had_is_known_of_the_latest_of_each_user() -> None:
    ordinals = numbered((), job(0, "alice"))
    for number in range(5_000):
        ordinals = numbered(ordinals.items(), job(number))
    assert len(ordinals) == 1_024 + 1
    assert ordinals[job(0, "alice")] == 1
    assert numbered(ordinals.items(), job(4_999))[job(4_999)] == 2
    assert numbered(ordinals.items(), job(0))[job(0)] == 1, "forgotten"


def test_many_users_have_an_end_too() -> None:
    ordinals = {job(number, f"uid {number}"): 1 for number in range(16_384)}
    after = numbered(ordinals.items(), job(0))
    assert len(after) == 16_384
    assert job(0) in after


def test_incidents_are_counted_by_name_for_the_latest_jobs_of_each_user_and_none_is_lost() -> None:
    tally = Tally().step((), (), ())
    alice = incident(incident_id="alice-1", job=job(0, "alice"))
    tally = tally.step((), (), (alice,))
    sizes = []
    for number in range(2_000):
        tally = tally.step((), (), (incident(incident_id=f"bob-{number}", job=job(number)),))
        sizes.append(len(msgspec.msgpack.encode(tally)))
    assert sizes[-1] < 1.1 * sizes[400], "a plateau"
    totals = {(one.training_job, one.owner): one.total for one in tally.counts}
    assert totals["job-0", "alice"] == 1
    assert totals["job-1999", "bob"] == 1
    assert sum(total for (_, owner), total in totals.items() if owner == "bob") == 2_000
    assert totals[OTHERS, "bob"] > 1_000
