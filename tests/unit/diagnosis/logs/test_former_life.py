"""Logs that hold more than one life of a job."""

from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.logs import of_this_life
from stallwatch.model.evidence import Evidence, ProcessLook, RankEvidence
from stallwatch.model.log_event import LogEvent

OLD = (
    LogEvent("exception", "RuntimeError: first life", 10, rank=0, exception="RuntimeError"),
    LogEvent("process_failed", "failed (exitcode: 1) local_rank: 0 (pid: 70)", 20, local_rank=0, pid=70, exit_code=1),
)
NEW = LogEvent("exception", "RuntimeError: second life", 30, rank=0, exception="RuntimeError")


def rank(number: int, pid: int, *events: LogEvent, namespace_pid: int | None = -1) -> RankEvidence:
    look = ProcessLook(source=f"process{number}.json", look=1, pid=pid, state="S")
    look = replace(look, namespace_pid=pid if namespace_pid == -1 else namespace_pid)
    return RankEvidence(rank=number, host="node0", pid=pid, processes=(look,), log=("…",), log_events=events)


def events(*ranks: RankEvidence) -> list[tuple[LogEvent, ...]]:
    return [one.log_events for one in of_this_life(ranks)]


def test_what_a_log_says_of_a_life_that_ended_is_not_said_of_this_one() -> None:
    assert events(rank(0, 80, *OLD, NEW), rank(1, 81, *OLD)) == [(NEW,), ()]


def test_deaths_of_this_life_end_nothing() -> None:
    ours = (*OLD[:1], replace(OLD[1], pid=80), NEW)
    assert events(rank(0, 80, *ours), rank(1, 81, *ours)) == [ours, ours]


def test_a_container_knows_its_processes_by_other_numbers() -> None:
    inner = (replace(OLD[1], pid=7), NEW)
    assert events(rank(0, 80, *inner, namespace_pid=7), rank(1, 81, namespace_pid=8)) == [inner, ()]


def test_without_a_ranks_own_number_nothing_is_dropped() -> None:
    assert events(rank(0, 80, *OLD), rank(1, 81, namespace_pid=None)) == [OLD, ()]


def test_a_living_process_did_not_end_whatever_a_log_says() -> None:
    report = LogEvent(
        "launcher_failure", "rank 1 exitcode -15 (pid: 71)", 5, rank=1, pid=71, exit_signal=15, first=True
    )
    ranks = tuple(rank(number, 80 + number, report, namespace_pid=None) for number in range(2))
    for verdict in judge(Evidence(2, "gloo", ranks, (), ())).verdicts:
        assert verdict.cause != "rank_exited"
