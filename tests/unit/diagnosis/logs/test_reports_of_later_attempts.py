"""Public reports, rebuilt from the formats with other numbers: attempts that were started again, logs that go on after
what looks bad, older forms of NCCL's and the launchers' lines."""

import pytest

from stallwatch.formats.training_log import parse
from tests.builders.texts import AGENT, RAISED, ranked, timed_out, told, verdict

SUMMARY = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "============================================================\ntrain.py FAILED\n"
    "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
    "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
    "  time      : 2026-11-28_21:20:00\n  host      : node0\n  rank      : 3 (local_rank: 3)\n"
    "  exitcode  : 1 (pid: 106)\n  error_file: <N/A>\n  traceback : To enable traceback see: https://x\n"
    "============================================================\n"
)
FAILED = ranked(RAISED, 3) + AGENT["2.4"].format(code=1, rank=3, pid=106)
AGAIN = (
    "I1128 21:20:01.100000 4990 torch/distributed/elastic/agent/server/api.py:879] [default] Worker group FAILED. 3/3 "
    "attempts left; will restart worker group\n"
)
STEPS = "".join(f"step {number} | loss 2.{number}\n" for number in range(100, 170, 10))


@pytest.mark.parametrize("said", [AGAIN, ""], ids=["the agent says so", "it says nothing, as by default"])
def test_a_rank_that_failed_before_ranks_were_started_again_and_make_steps_is_no_culprit(said: str) -> None:
    found = verdict(FAILED + said + STEPS)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert "started again" in found.summary
    assert any("ValueError" in fact.fact and "before" in fact.fact for fact in found.because)


@pytest.mark.parametrize("after", ["", SUMMARY, SUMMARY + STEPS, STEPS[: STEPS.index("step 120")]])
def test_it_is_one_where_nothing_tells_that_ranks_make_steps_again(after: str) -> None:
    assert told(FAILED + after) == ("rank_exited", (3,))


def test_of_an_attempt_that_fails_after_such_steps_only_that_ones_failure_is_told() -> None:
    later = ranked(RAISED.replace("ValueError", "KeyError"), 5) + AGENT["2.4"].format(code=1, rank=5, pid=218)
    assert told(FAILED + AGAIN + STEPS + later.replace("21:20:00", "21:29:00")) == ("rank_exited", (5,))


def test_what_looks_like_an_error_and_has_enough_steps_behind_it_is_not_what_a_log_tells() -> None:
    retry = "tracker: Network error (ConnectionError), entering retry loop.\n"
    kinds = {event.kind for event in parse((retry + STEPS).encode()).events}
    assert kinds == {"last_line"}
    assert {event.kind for event in parse((STEPS + retry).encode()).events} == {"error_like"}


def test_ranks_of_which_nothing_was_read_are_named_as_what_is_missing_and_not_as_culprits() -> None:
    waits = "".join(timed_out("2.5", rank, 335785, "ALLGATHER") for rank in (1, 2, 4, 5, 6))
    found = verdict(waits)
    assert (found.cause, found.culprits) == ("undecided", ())
    assert any("ranks 0,3" in text for text in found.missing)
    assert not any(
        "what rank" in text for text in verdict("".join(timed_out("2.5", rank, 3) for rank in (4, 7))).missing
    )
