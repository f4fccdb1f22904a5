from typing import Any

import msgspec
import pytest

from stallwatch.incidents.recurrence import recurrence
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from tests.unit.incidents.stories import Story, facts, report, stall


def hang(number: int, step: int | None, rank: int, host: str = "node0", **fields: Any) -> Incident:
    """A hang in the number-th life of a job."""
    job = JobKey("train", f"epoch-{number}")
    story = Story()
    story.at(6, msgspec.structs.replace(stall("confirmed", job=job), step=step), jobs=[facts(job)])
    said = report("not_entered", (rank,))
    process = {"rank": rank, "host": host}
    verdict = msgspec.convert(
        {**msgspec.to_builtins(said.verdicts[0]), "culprit_processes": [process]}, type(said.verdicts[0])
    )
    said = msgspec.structs.replace(said, verdicts=(verdict,))
    return msgspec.structs.replace(story.incident, report=said, **fields)


def test_a_first_hang_has_no_pattern() -> None:
    assert recurrence(hang(1, 1200, 3), []) == ""


def test_another_users_job_of_the_same_name_has_no_past_for_ours() -> None:
    ours, theirs = hang(3, 1200, 3), hang(2, 1200, 1)
    theirs = msgspec.structs.replace(theirs, job=msgspec.structs.replace(theirs.job, owner="ben"))
    assert recurrence(ours, [theirs]) == ""


def test_the_same_step_again_is_data_or_code() -> None:
    sentence = recurrence(hang(3, 1200, 3), [hang(2, 1201, 1), hang(1, 1200, 0)])
    assert "third hang" in sentence
    assert "each time at step 1200" in sentence
    assert "data or code" in sentence


def test_a_job_that_never_gets_to_its_first_step_meets_no_data_there() -> None:
    sentence = recurrence(hang(3, 0, 3), [hang(2, 0, 1), hang(1, 900, 0)])
    assert "2 times before its first step; consistent with its set-up, the network or a machine" in sentence
    assert "data or code" not in sentence


def test_rotating_ranks_at_random_steps_are_hardware_or_a_library() -> None:
    sentence = recurrence(hang(3, 900, 3), [hang(2, 5000, 1), hang(1, 120, 0)])
    assert "another rank each time" in sentence
    assert "hardware, network or a library" in sentence


def test_the_same_rank_on_the_same_machine_is_that_machine() -> None:
    assert "that machine or GPU" in recurrence(hang(2, 900, 3), [hang(1, 120, 3)])
    assert "shard of the data" in recurrence(hang(2, 900, 3, "node1"), [hang(1, 120, 3, "node0")])


def test_two_are_too_few_to_call_it_rotating() -> None:
    assert "no step and no rank recurs" in recurrence(hang(2, 900, 3), [hang(1, 120, 0)])


@pytest.mark.parametrize("other", ["another job", "no verdict", "itself"])
def test_what_does_not_count(other: str) -> None:
    now, before = hang(2, 1200, 3), hang(1, 1200, 3)
    if other == "another job":
        before = msgspec.structs.replace(before, job=JobKey("other", "epoch-1"))
    elif other == "no verdict":
        before = msgspec.structs.replace(before, report=None)
    else:
        before = now
    assert recurrence(now, [before]) == ""


def test_it_is_among_the_reasons_of_the_verdict() -> None:
    story = Story()
    for life in (1, 2):
        job = JobKey("train", f"epoch-{life}")
        finding = msgspec.structs.replace(stall("confirmed", job=job), step=1200)
        story.at(100 * life, finding, jobs=[facts(job)])
        story.looked()
        story.judged(report("not_entered"))
    verdict = story.incident.verdict
    assert verdict is not None
    assert any("second hang" in fact.fact for fact in verdict.because)
    assert len(story.lives.past) == 1, "the restart ended the first"
