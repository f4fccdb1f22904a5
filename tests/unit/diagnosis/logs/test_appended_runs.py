"""A log into which a later run writes on, behind the word of the launcher that gave the one before up."""

import pytest

from stallwatch.diagnosis.logs import read_logs
from tests.builders.texts import marked, of_logs, timed_out, told, verdict
from tests.unit.diagnosis.logs.test_reports_of_later_attempts import FAILED, STEPS, SUMMARY

OVER = FAILED + SUMMARY
TORCHRUN = (
    "W1128 {at}.100000 {pid} torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each "
    "process to be 1 in default, to avoid your system being overloaded\n"
)
DEEPSPEED = "[2026-11-28 {at},100] [INFO] [launch.py:163:main] WORLD INFO DICT: {{'node0': [0, 1]}}\n"
AGENT = (
    "I1128 {at}.100000 {pid} torch/distributed/elastic/agent/server/api.py:870] [default] starting workers for "
    "entrypoint: python\n"
)
STARTS = pytest.mark.parametrize("start", [TORCHRUN, DEEPSPEED, AGENT], ids=["torchrun", "deepspeed", "agent"])
LATER = "22:05:00"
TIMED = "".join(f"2026-11-28 22:0{n}:00 step {100 + 10 * n} | loss 2.{n}\n" for n in range(7))


@STARTS
def test_who_failed_in_the_run_before_is_no_culprit_of_the_one_that_steps(start: str) -> None:
    found = verdict(OVER + start.format(at=LATER, pid=7000) + STEPS)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "started again" in found.summary
    assert any("ValueError" in fact.fact and "before" in fact.fact for fact in found.because)


@STARTS
@pytest.mark.parametrize("pid", [7000, 4990], ids=["another agent", "in containers of one number"])
def test_of_two_runs_that_failed_the_later_one_is_told(start: str, pid: int) -> None:
    later = OVER.replace("21:", "22:").replace("ValueError", "KeyError").replace(" 4990 ", f" {pid} ")
    later = later.replace("[rank3]", "[rank5]").replace("rank: 3", "rank: 5").replace("rank      : 3", "rank      : 5")
    assert told(OVER + start.format(at=LATER, pid=pid) + later) == ("rank_exited", (5,))


def test_a_later_run_that_hangs_is_judged_by_its_own_waits() -> None:
    waits = "".join(timed_out("2.6", rank, 20) for rank in (0, 1))
    found = verdict(OVER + TORCHRUN.format(at=LATER, pid=7000) + STEPS + waits)
    assert 3 not in found.culprits
    assert "ValueError" not in found.summary


def test_a_later_run_that_ends_well_is_over_and_nobody_is_to_blame() -> None:
    end = "[rank0]:[I1128 23:00:00.1 main.cpp:1] \nTraining finished with exit code 0\n"
    found = verdict(OVER + TORCHRUN.format(at=LATER, pid=7000) + STEPS + end)
    assert (found.cause, found.culprits) == ("job_ended", ())


@STARTS
def test_a_later_run_of_which_no_more_is_told_than_its_start_is_not_what_failed_before(start: str) -> None:
    found = verdict(OVER + start.format(at=LATER, pid=7000))
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "their start" in found.summary


def test_steps_that_are_made_long_after_the_launcher_gave_up_are_of_a_later_run() -> None:
    assert told(OVER + TIMED) == ("undecided", ())


@pytest.mark.parametrize("behind", [
    TORCHRUN.format(at="20:05:00", pid=7000) + STEPS,
    TIMED.replace(" 22:", " 21:"),
    TORCHRUN.format(at="20:05:00", pid=7000) + STEPS + timed_out("2.6", 9, 20),
])  # fmt: skip
def test_a_second_nodes_log_behind_the_firsts_is_of_the_same_run(behind: str) -> None:
    assert told(OVER + behind) == ("rank_exited", (3,))


PREEMPTED = "slurmstepd: error: *** JOB 99 ON n1 CANCELLED AT 2026-11-28T21:20:00 DUE TO PREEMPTION ***\n"


def test_a_job_that_was_requeued_and_steps_again_is_not_over() -> None:
    text = STEPS + PREEMPTED + TORCHRUN.format(at=LATER, pid=7000) + STEPS
    found = verdict(text)
    assert read_logs((), of_logs(text).log_events).says_something
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "started again" in found.summary


def test_lines_that_a_collector_stamps_by_utc_are_compared_by_its_stamps() -> None:
    runs = STEPS + PREEMPTED, TORCHRUN.format(at=LATER, pid=7000) + STEPS
    text = "".join(marked(run, f"2026-11-28T1{hour}:00:00Z ") for hour, run in enumerate(runs))
    assert told(text) == ("undecided", ())


@pytest.mark.parametrize("behind", ["", STEPS, TIMED, TORCHRUN.format(at="20:05:00", pid=7000) + STEPS])
def test_steps_in_the_grace_of_a_job_that_was_cancelled_are_its_own(behind: str) -> None:
    assert told(STEPS + PREEMPTED + behind) == ("job_ended", ())


def test_a_job_that_requeues_itself_is_over_until_it_starts_again() -> None:
    signal = "Handling auto-requeue signal: 10\nRequeuing job 99...\nRequeued SLURM job: 99\n"
    assert told(STEPS + signal) == ("job_ended", ())
    stamped = signal.replace("Requeued", "2026-11-28 21:20:00,100 - INFO - Requeued")
    assert told(STEPS + stamped + TORCHRUN.format(at=LATER, pid=7000) + STEPS) == ("undecided", ())
