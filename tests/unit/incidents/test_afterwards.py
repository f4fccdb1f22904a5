"""Of a job that is over nothing can be looked into, waited for or ended: its steps are what is left to do."""

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from stallwatch.incidents.afterwards import steps_when_over
from stallwatch.model.causes import CAUSES
from stallwatch.model.verdict import Cause, CulpritProcess, Verdict, Where
from tests.unit.diagnosis.report.test_steps import ENDS, steps

OF_THE_LIVING = ("py-spy", "cuda-gdb", "/proc/", "--pid", "pid=", "`ps ", "kill -", "Stop the", "Wait", "MASTER_ADDR")
STATES: tuple[dict[str, Any], ...] = (
    *ENDS, {"stopped": True}, {"stopped": True, "frozen": True}, {"tracer_pid": 41}, {"uninterruptible": True},
    {"waits_for_children": True}, {"detail": "waits for a database"}, {"detail": "waits for input from a person"},
)  # fmt: skip


def over(cause: Cause, told: tuple[str, ...], *, ended: bool = True) -> tuple[str, ...]:
    process = CulpritProcess(2, "node7", 4711)
    verdict = Verdict(cause, (2,), "certain", "", culprit_processes=(process,), next_steps=told)
    left = steps_when_over(verdict, "train-1", ended=ended)
    assert steps_when_over(replace(verdict, next_steps=left), "train-1", ended=ended) == left, (
        "said twice it is the same"
    )
    return left


@pytest.mark.parametrize("cause", get_args(Cause))
def test_no_step_asks_for_a_process_that_is_gone(cause: Cause) -> None:
    for where in get_args(Where):
        for state in STATES:
            told = steps(cause, 2, **({"where": where} | state))
            left = over(cause, told)
            assert not [step for step in left if any(word in step for word in OF_THE_LIVING)]
            assert bool(left) == (bool(told) or CAUSES[cause].accuses)  # some write their steps into their claim
            assert len(left) <= 5


def test_what_is_left_is_to_read_to_mend_and_to_start_again() -> None:
    evidence, *mend, again = over("not_entered", steps("not_entered", 2, where="lock"))
    assert "`stallwatch incidents train-1`" in evidence
    assert any("before a fork" in step for step in mend)
    assert again == "Start the job from its last checkpoint once that is mended: else it comes back at the same call."
    assert again not in over("not_entered", steps("not_entered", 2, where="lock"), ended=False), "it runs"


def test_a_node_whose_hardware_it_was_is_checked_before_it_takes_another_job() -> None:
    left = over("gpu_fault", steps("gpu_fault", 2))
    assert any("Before node7 takes another job" in step and "node-check" in step for step in left)
    assert not any("node-check" in step for step in over("not_entered", steps("not_entered", 2)))


def test_what_said_that_the_job_is_to_be_stopped_says_what_follows_it() -> None:
    assert "Run `stallwatch selftest` on the same nodes: it finds the collective, GPU or link that fails." in over(
        "comm_stuck", steps("comm_stuck")
    )
