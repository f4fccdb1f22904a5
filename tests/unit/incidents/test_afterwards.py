"""Of a job that is over nothing can be looked into, waited for or ended: its steps are what is left to do."""

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.logs.remedies_by_text import Then, Words
from stallwatch.diagnosis.report.steps import next_steps
from stallwatch.diagnosis.step import NextStep, of_the_living, starts_job, when_over, with_steps
from stallwatch.incidents.afterwards import steps_when_over
from stallwatch.model.causes import CAUSES
from stallwatch.model.verdict import Cause, CulpritProcess, Frame, Verdict, WhenOver, Where
from tests.unit.diagnosis.report.test_steps import ENDS, marked_steps

OF_THE_LIVING = ("py-spy", "cuda-gdb", "/proc/", "--pid", "pid=", "`ps ", "kill -", "Stop the", "Wait", "MASTER_ADDR")
STATES: tuple[dict[str, Any], ...] = (
    *ENDS, {"stopped": True}, {"stopped": True, "frozen": True}, {"tracer_pid": 41}, {"uninterruptible": True},
    {"waits_for_children": True}, {"detail": "waits for a database"}, {"detail": "waits for input from a person"},
)  # fmt: skip


def over(cause: Cause, told: tuple[NextStep, ...], *, ended: bool = True) -> tuple[str, ...]:
    process = CulpritProcess(2, "node7", 4711)
    verdict = with_steps(Verdict(cause, (2,), "certain", "", culprit_processes=(process,)), told)
    left = steps_when_over(verdict, "train-1", ended=ended)
    assert steps_when_over(replace(verdict, next_steps=left), "train-1", ended=ended) == left, (
        "said twice it is the same"
    )
    return left


@pytest.mark.parametrize("cause", get_args(Cause))
def test_no_step_asks_for_a_process_that_is_gone(cause: Cause) -> None:
    for where in get_args(Where):
        for state in STATES:
            told = marked_steps(cause, 2, **({"where": where} | state))
            left = over(cause, told)
            assert not [step for step in left if any(word in step for word in OF_THE_LIVING)]
            assert bool(left) == (bool(told) or CAUSES[cause].accuses)  # some write their steps into their claim
            assert len(left) <= 5


def test_what_is_left_is_to_read_to_mend_and_to_start_again() -> None:
    evidence, *mend, again = over("not_entered", marked_steps("not_entered", 2, where="lock"))
    assert "`stallwatch incidents train-1`" in evidence
    assert any("before a fork" in step for step in mend)
    assert again == "Start the job from its last checkpoint once that is mended: else it comes back at the same call."
    assert again not in over("not_entered", marked_steps("not_entered", 2, where="lock"), ended=False), "it runs"


def test_a_node_whose_hardware_it_was_is_checked_before_it_takes_another_job() -> None:
    left = over("gpu_fault", marked_steps("gpu_fault", 2))
    assert any("Before node7 takes another job" in step and "node-check" in step for step in left)
    assert not any("node-check" in step for step in over("not_entered", marked_steps("not_entered", 2)))


def test_what_said_that_the_job_is_to_be_stopped_says_what_follows_it() -> None:
    assert "Run `stallwatch selftest` on the same nodes: it finds the collective, GPU or link that fails." in over(
        "comm_stuck", marked_steps("comm_stuck")
    )


def test_a_word_that_steps_quote_decides_nothing() -> None:
    quoted = Frame("/proc/self/cwd/train.py", 3, "start_the_job")
    raised = {"exit_code": 1, "exception": "RuntimeError: Wait, py-spy --pid 3", "exception_frame": quoted}
    told = marked_steps("rank_raised", 2, **raised)
    _, mend, *_, again = over("rank_raised", told)
    assert mend == told[0]
    assert again.startswith("Start the job from its last checkpoint")


def test_what_starts_the_job_in_its_own_way_needs_no_second_start() -> None:
    told = marked_steps("fabric_fault", 2)
    left = over("fabric_fault", told)
    assert "Restart the job with NCCL_DEBUG=WARN to see which peer and adapter fail." in left
    assert not any("from its last checkpoint" in step for step in left)


def test_a_document_of_an_older_version_keeps_none_of_its_steps() -> None:
    verdict = Verdict("not_entered", (2,), "certain", "", next_steps=("Mend it.",))
    evidence, again = steps_when_over(verdict, "train-1", ended=True)
    assert "stallwatch incidents train-1" in evidence
    assert again.startswith("Start the job")


def test_what_is_said_more_of_a_step_is_said_of_what_is_left_of_it_too() -> None:
    said = starts_job("Stop the job and run it.", left="Run it.") + " (twice)"
    assert (said.text, when_over((said,))) == ("Stop the job and run it. (twice)", WhenOver(("Run it. (twice)",), True))
    assert when_over((of_the_living("Look.") + " (twice)",)) == WhenOver()


def test_a_step_in_a_text_is_an_error_and_no_step_that_is_told_of_a_job_that_is_over() -> None:
    with pytest.raises(TypeError, match="add the text to it: 'Look"):
        f"{of_the_living('Look.')} (twice)"


@pytest.mark.parametrize("then", get_args(Then))
def test_what_a_log_says_of_processes_of_the_job_is_left_out_when_it_is_over(then: Then) -> None:
    verdict = Verdict("not_entered", (2,), "likely", "")
    look = Words("It waits.", "look into it", then, of_the_living=True)._replace(remedy="look into it; twice")
    assert "look into it; twice" not in when_over(next_steps(verdict, {}, look)).steps
    assert "look into it; twice" in when_over(next_steps(verdict, {}, look._replace(of_the_living=False))).steps


def test_a_step_that_others_put_first_is_left_first() -> None:
    told = with_steps(Verdict("undecided", (), "possible", ""), ("Mend it.", "Look."))
    first = told.with_first_step("Ask the node.")
    assert first.next_steps == ("Ask the node.", "Mend it.", "Look.")
    assert first.when_over.steps == ("Ask the node.", "Mend it.")
