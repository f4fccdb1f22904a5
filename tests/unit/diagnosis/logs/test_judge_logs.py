"""Verdicts where logs are the only witness."""

import msgspec

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Evidence, RankEvidence
from stallwatch.model.log_event import LogEvent
from tests.builders.job import Rank, evidence


def _job(*ranks: tuple[LogEvent, ...], launcher: tuple[LogEvent, ...] = ()) -> Evidence:
    evidence = tuple(
        RankEvidence(rank=rank, host="node0", pid=None, log=("…",), log_events=events)
        for rank, events in enumerate(ranks)
    )
    return Evidence(len(ranks) or None, "nccl", evidence, (), (), log_events=launcher)


def _status(enqueued: int, completed: int, seq: int = 30) -> LogEvent:
    text = f"failure detected by watchdog at work sequence id: {seq}"
    return LogEvent("group_status", text, 1, group="default_pg", seq=seq, enqueued=enqueued, completed=completed)


def test_the_watchdogs_numbers_name_who_was_behind() -> None:
    told = judge(_job((_status(31, 29),), (_status(31, 29),), (_status(29, 29, -1),), (_status(30, 29),)))
    verdict = told.verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


def test_ranks_that_enqueued_less_than_another_waits_in_are_absent_be_they_most() -> None:
    verdict = judge(_job((_status(31, 29),), (_status(29, 29, -1),), (_status(29, 29, -1),))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1, 2))


def test_a_monitored_barrier_names_who_did_not_come() -> None:
    event = LogEvent("barrier_absent", "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 5000 ms", 1, ranks=(1,))
    verdict = judge(_job((event,), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))


def test_the_launchers_first_failure_is_the_cause() -> None:
    failures = (
        LogEvent("launcher_failure", "rank 0", 1, rank=0, exit_code=1),
        LogEvent("launcher_failure", "rank 2", 2, rank=2, exit_signal=9, first=True),
    )
    verdict = judge(_job((), (), (), launcher=failures)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("rank_exited", (2,))


def test_gloos_refusal_of_a_message_accuses_nobody() -> None:
    event = LogEvent("size_mismatch", "op.preamble.length <= op.nbytes. 8 vs 4", 1, numel_in=8, numel_out=4)
    verdict = judge(_job((event,), ())).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())
    assert verdict.missing


def test_gloo_s_refusal_as_an_exception_is_gloo_s() -> None:
    text = "[enforce fail at ../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4"
    event = LogEvent("exception", f"RuntimeError: {text}", 1, exception="RuntimeError", message=text)
    summary = judge(_job((event,), ())).verdicts[0].summary
    assert "received 8 bytes in a collective where it expected 4, and was aborted by gloo" in summary


def test_the_rank_that_gloo_aborted_is_the_one_whose_log_is_cited_and_not_accused() -> None:
    """All ranks write to one file, so each of them seems to have printed what gloo said to rank 1."""
    event = LogEvent("size_mismatch", "op.preamble.length <= op.nbytes. 8 vs 4", 1, numel_in=8, numel_out=4)
    told = evidence(
        Rank(0, exit_code=1, dumped=False, state="X", log=("…",)),
        Rank(1, exit_signal=6, dumped=False, state="X", log=("…",)),
    )
    ranks = tuple(msgspec.structs.replace(rank, log_events=(event,)) for rank in told.ranks)
    verdict = judge(msgspec.structs.replace(told, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())
    assert verdict.because[0].source == "log of rank 1"
    assert "received 8 bytes in a collective where it expected 4" in verdict.summary
    assert "may be an innocent one" in verdict.summary
    assert "culprit" not in " ".join(verdict.next_steps)


def test_what_the_launcher_says_of_the_end_is_in_the_first_sentence() -> None:
    failure = LogEvent("launcher_failure", "…", 1, rank=1, exit_signal=9, first=True, pid=4711, host="node7")
    summary = judge(_job((), (failure,))).verdicts[0].summary
    assert summary == (
        "Rank 1 (pid 4711 on node0) was ended by SIGKILL, sender not known, consistent with rank 1 being the cause."
    )


def test_an_exit_code_of_the_launcher_is_told() -> None:
    failure = LogEvent("launcher_failure", "…", 1, rank=1, exit_code=3, first=True)
    assert "exited with code 3" in judge(_job((), (failure,))).verdicts[0].summary
