"""What follows from the ranks' lines and exit codes."""

from stallwatch.selftest.told_so_far import ReportLine, failure_at_end
from stallwatch.selftest.worker.step_lines import IMPORT
from tests.unit.selftest.lines import begin, done, end, progress


def test_all_right_is_no_failure() -> None:
    lines = [*done(0, "init"), *done(1, "init"), ReportLine("finished", 0, 0, 1), ReportLine("finished", 1, 0, 1)]
    assert failure_at_end(progress(2, *lines), {0: 0, 1: 0}) is None


def test_a_dead_rank_explains_the_errors_of_the_others() -> None:
    made = progress(
        2, begin(0, "broadcast", 8), begin(1, "broadcast", 8), end(0, "broadcast", 8, "error", "reset by peer")
    )
    failure = failure_at_end(made, {0: 10, 1: -11})
    assert failure is not None
    assert (failure.kind, failure.culprits, failure.step, failure.bytes) == ("died", (1,), "broadcast", 8)
    assert "signal 11" in failure.summary


def test_the_first_error_counts_not_the_lowest_rank() -> None:
    made = progress(
        2,
        begin(0, "scatter", 8),
        begin(1, "scatter", 8),
        end(0, "scatter", 8, "error", "connection closed", at_ns=9),
        end(1, "scatter", 8, "error", "out of memory", at_ns=3),
    )
    failure = failure_at_end(made, {0: 10, 1: 10})
    assert failure is not None
    assert "rank 1 failed in step scatter 8 B: out of memory" in failure.summary


def test_who_never_came_to_the_store_is_the_culprit() -> None:
    waiting = [line for rank in (0, 1) for line in (*done(rank, "store"), begin(rank, "meeting"))]
    made = progress(3, *waiting, begin(2, IMPORT), end(0, "meeting", outcome="error", detail="rank 2 never came"))
    failure = failure_at_end(made, {0: 10})
    assert failure is not None
    assert (failure.kind, failure.culprits) == ("absent", (2,))


def test_an_error_on_every_rank_accuses_nobody() -> None:
    lines = [
        line
        for rank in (0, 1)
        for line in (begin(rank, "init"), end(rank, "init", outcome="error", detail="no device"))
    ]
    failure = failure_at_end(progress(2, *lines), {0: 10, 1: 10})
    assert failure is not None
    assert failure.culprits == ()


def test_a_wrong_result_on_all_ranks_accuses_nobody_and_on_one_that_one() -> None:
    def with_wrong(*ranks: int) -> tuple[int, ...] | None:
        lines = [
            line
            for rank in (0, 1)
            for line in (
                begin(rank, "gather", 8),
                end(rank, "gather", 8, "wrong" if rank in ranks else "ok", "element 3"),
            )
        ]
        failure = failure_at_end(progress(2, *lines), {0: 0, 1: 0})
        return None if failure is None else failure.culprits

    assert with_wrong() is None
    assert with_wrong(1) == (1,)
    assert with_wrong(0, 1) == ()


def test_steps_keep_the_worst_outcome_the_slowest_rank_and_the_lowest_rate() -> None:
    made = progress(
        2,
        begin(0, "all_reduce bandwidth", 8),
        begin(1, "all_reduce bandwidth", 8),
        end(0, "all_reduce bandwidth", 8, bus_bytes_per_second=100),
        end(1, "all_reduce bandwidth", 8, bus_bytes_per_second=60),
        begin(0, "reduce", 8),
        begin(1, "reduce", 8),
        end(0, "reduce", 8),
    )
    first, second = made.steps()
    assert first.bus_bytes_per_second == 60
    assert (second.outcome, second.ranks) == ("unfinished", (1,))


def test_behind_are_those_who_have_begun_less() -> None:
    assert progress(2, *done(0, "store"), begin(0, "meeting"), begin(1, "store")).behind() == (1,)
    assert progress(2, begin(0, "store"), begin(1, "store")).behind() == ()


def test_stuck_are_those_in_a_step_that_others_have_ended() -> None:
    assert progress(2, begin(0, "gather"), *done(1, "gather")).stuck() == (0,)
    assert progress(2, begin(0, "gather"), begin(1, "gather")).stuck() == ()


def test_a_rank_that_loads_torch_is_given_the_time_of_a_start() -> None:
    assert progress(2, *done(0, IMPORT)).importing()
    assert progress(1, begin(0, IMPORT)).importing()
    assert not progress(1, *done(0, IMPORT), begin(0, "device")).importing()
