"""Who is to blame for the waits that watchdogs print."""

from collections.abc import Sequence

import pytest

from tests.builders.texts import (
    ABORTED,
    AGENT,
    RAISED,
    VERSIONS,
    dump_signal,
    group,
    header,
    ranked,
    timed_out,
    told,
    verdict,
)


@pytest.mark.parametrize("version", VERSIONS[3:])
@pytest.mark.parametrize("absent", [(0,), (0, 1, 2, 3), (1, 2, 3, 4, 5, 6)])
def test_enqueued_below_the_waited_number_proves_absence_without_a_vote(version: str, absent: tuple[int, ...]) -> None:
    if version == "2.3":
        pytest.skip("it prints no numbers of ranks that do not wait")
    waiting = [rank for rank in range(8) if rank not in absent]
    log = "".join(timed_out(version, rank, 22) for rank in waiting)
    log += "".join(dump_signal(version, rank, 21, waiting[0]) for rank in absent)
    assert told(log) == ("not_entered", absent)


def test_who_is_absent_because_it_waits_in_another_group_is_not_to_blame() -> None:
    log = "".join(timed_out("2.6", rank, 50) for rank in (0, 1)) + dump_signal("2.6", 2, 49) + dump_signal("2.6", 3, 49)
    waits = timed_out("2.6", 2, 7, place=0, name="tp", number=4)
    assert told(log + waits) != ("not_entered", (2, 3))
    # Both wait in a group where rank 3 enqueued less.
    behind = (
        f"{header('2.6', 3)}{group('2.6', 1, 'tp', 4)} failure detected by watchdog at work sequence id: -1 "
        "PG status: last enqueued work: 6, last completed work: 6\n"
    )
    assert told(log + waits + behind) == ("not_entered", (3,))


@pytest.mark.parametrize("version", VERSIONS)
def test_another_operation_or_size_at_one_number_is_a_mismatch(version: str) -> None:
    others = "".join(timed_out(version, rank, 31, size=4096) for rank in range(7))
    assert told(others + timed_out(version, 7, 31, "BROADCAST", size=4096)) == ("collective_mismatch", (7,))
    if version != "2.0":  # it prints no sizes
        assert told(others + timed_out(version, 7, 31, size=4000)) == ("collective_mismatch", (7,))


def _broke(
    rank: int,
    size: int,
    why: str = "remote process exited or there was a network error",
    *,
    seq: int = 81,
    operation: str = "ALLREDUCE",
) -> str:
    """What a rank of torch 2.11 prints where NCCL gives up a communicator, not where time is over."""
    return (
        f"{header('2.6', rank)}[Rank {rank}] Collective WorkNCCL(SeqNum={seq}, OpType={operation}, NumelIn={size}, "
        f"NumelOut={size}, Timeout(ms)=600000) raised the following async exception: NCCL error: {why}, NCCL version "
        f"2.28.9\n{header('2.6', rank)}{group('2.6', rank)} failure detected by watchdog at work sequence id: {seq} "
        f"PG status: last enqueued work: {seq}, last completed work: {seq - 1}\n"
    )


def test_sizes_are_compared_where_a_communicator_broke() -> None:
    """As that of sockets does, which sees a message that is too long. The launcher ends the rest before they speak."""
    log = _broke(0, 4096) + _broke(2, 4096) + _broke(3, 64, "invalid usage (run with NCCL_DEBUG=WARN for details)")
    found = verdict(log)
    assert (found.cause, found.culprits) == ("collective_mismatch", (3,))
    assert "64 elements" in found.summary


def test_whose_communicator_broke_in_a_call_that_others_had_left_called_nothing_else() -> None:
    """Rank 2 sent more than rank 0 expected: rank 0's part of the exchange failed, ranks 1 and 3 had ended theirs."""
    broke = _broke(0, 16, "invalid usage (run with NCCL_DEBUG=WARN for details)", operation="ALLTOALL_BASE")
    others = _broke(1, 1024, seq=82) + _broke(3, 1024, seq=82)
    assert told(broke + others)[1] == ()
    truncated = "[rank0]: NET/Socket : peer 10.0.0.2<5> message truncated : receiving 32 bytes instead of 16.\n"
    assert told(truncated + broke + others) == ("collective_mismatch", ())
    # Who waited in vain in it, while others were further on, was in another call.
    in_vain = timed_out("2.6", 3, 81) + "".join(timed_out("2.6", rank, 82) for rank in range(3))
    assert told(in_vain) == ("collective_mismatch", (3,))


def test_whose_log_ends_before_nccl_s_reason_for_invalid_usage_may_have_received_what_another_sent() -> None:
    lines = (
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "/job/train.py", line 90, in step',
        "[rank0]:     dist.all_reduce(grad)",
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3780, invalid usage (run "
        "with NCCL_DEBUG=WARN for details), NCCL version 2.28.9",
        "[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    )
    assert told("\n".join(lines) + "\n")[1] == ()


def test_who_was_on_its_way_where_a_communicator_broke_is_not_absent() -> None:
    """A link breaks: what was enqueued at that moment tells who was some milliseconds later, and no more."""
    broke = "".join(_broke(rank, 64) for rank in range(3))
    assert told(broke + dump_signal("2.6", 3, 80))[1] == ()


def test_who_printed_nothing_where_a_communicator_broke_is_not_to_blame() -> None:
    assert told(_broke(0, 64) + _broke(2, 64) + _broke(3, 64))[1] == ()


@pytest.mark.parametrize("operation", ["ALLTOALL_BASE", "COALESCED", "ALLGATHER", "GATHER", "SCATTER"])
def test_sizes_that_differ_in_health_are_no_mismatch(operation: str) -> None:
    log = "".join(timed_out("2.6", rank, 31, operation, size=100 + rank, out=800 + rank) for rank in range(4))
    assert verdict(log).cause in ("undecided", "comm_stuck")


def test_a_root_may_be_ahead_of_its_receivers() -> None:
    log = timed_out("2.6", 0, 12, "BROADCAST") + "".join(timed_out("2.6", rank, 11, "BROADCAST") for rank in (1, 2))
    assert verdict(log).cause in ("undecided", "comm_stuck")


def test_a_partition_without_a_majority_names_nobody_and_both_sides() -> None:
    log = "".join(timed_out("2.6", rank, 31, size=64) for rank in (0, 1))
    log += "".join(timed_out("2.6", rank, 31, "ALLGATHER_BASE", size=64) for rank in (2, 3))
    found = verdict(log)
    assert (found.cause, found.culprits) == ("collective_mismatch", ())
    assert "ranks 0-1" in found.summary and "ranks 2-3" in found.summary


@pytest.mark.parametrize("version", VERSIONS)
def test_a_rank_that_its_watchdog_aborted_is_a_victim(version: str) -> None:
    agent = AGENT["1.13" if version in ("1.13", "2.0") else "2.1" if version in ("2.1", "2.3") else "2.4"]
    log = timed_out(version, 1, 9) + ABORTED + agent.format(code=-6, rank=1, pid=5001)
    found = verdict(log)
    assert (found.cause, found.culprits) == ("undecided", ()), found


_BEFORE = "step 40 loss 2.1\n"  # a text that begins with the waits may have lost what others said


def test_one_that_printed_nothing_though_all_others_waited_may_be_the_absent_one() -> None:
    log = _BEFORE + "".join(timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=40) for rank in (0, 1, 3))
    assert verdict(log).culprits == (), "a text that ends there lacks what the fourth would have said a moment later"
    found = verdict(log + AGENT["2.4"].format(code=-6, rank=1, pid=5001))
    assert (found.cause, found.culprits) == ("not_entered", (2,))
    assert "printed nothing" in " ".join(fact.fact for fact in found.because)


def test_a_rank_whose_log_was_not_given_is_not_silent() -> None:
    texts = [timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=40) for rank in (0, 1, 3)]
    assert verdict(*texts).culprits == ()


def test_statuses_of_groups_that_could_not_be_read_are_not_compared() -> None:
    waits = timed_out("2.6", 13, 411, "ALLTOALL_BASE", place=5, name="ep", number=3)
    unnamed = f"{header('2.6', 0)}Last enqueued NCCL work: 12, last completed NCCL work: 12.\n"
    assert verdict(waits + unnamed).culprits == ()


def test_sister_groups_of_one_name_are_told_apart() -> None:
    log = timed_out("2.6", 0, 9, place=0, name="tp", number=1) + timed_out("2.6", 1, 9, place=1, name="tp", number=1)
    log += timed_out("2.6", 2, 5, place=0, name="tp", number=2) + timed_out("2.6", 3, 5, place=1, name="tp", number=2)
    assert verdict(log).culprits == ()


def test_who_printed_nothing_is_not_said_to_be_absent() -> None:
    log = "".join(timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=40) for rank in (0, 1, 3))
    log = _BEFORE + log + AGENT["2.4"].format(code=-6, rank=1, pid=5001)
    assert verdict(log).summary == (
        "Ranks 0-1,3 wait in all_gather_into_tensor number 9, and rank 2 printed nothing while all others did: "
        "consistent with it not having entered it."
    )


def test_sizes_that_differ_are_told_with_their_ranks() -> None:
    log = "".join(timed_out("2.8", rank, 9, size=64 if rank < 2 else 32) for rank in range(4))
    assert (
        "ranks 0-1 called all_reduce of 64 elements; ranks 2-3 called all_reduce of 32 elements" in verdict(log).summary
    )


_DESYNC = (
    "\n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
    "\n\t     [{0}] finished collective #8, but didn't join collective #9 (count from 1)"
    "\n\t - Snapshot of ranks' latest states:\n\t   #9 started ranks:\n\t     [0] started ALLREDUCE\n"
)
_NEVER = (
    "\n\t - To our best knowledge, ranks [{0}] are the lagging ranks that caused this timeout. They never joined any "
    "collectives\n"
)


@pytest.mark.parametrize("report", [_DESYNC, _NEVER])
@pytest.mark.parametrize("version", ["1.13", "2.1", "2.6"])
def test_torch_s_desync_report_names_who_had_not_joined(report: str, version: str) -> None:
    waits = "".join(timed_out(version, rank, 9) for rank in (0, 1))
    assert told(waits + report.format("2, 3")) == ("not_entered", (2, 3))
    # Reports of several ranks are of different moments: only who is in all of them was absent.
    assert told(waits + report.format("2, 3") + report.format("3")) == ("not_entered", (3,))


def test_a_desync_report_is_not_believed_against_what_the_ranks_say() -> None:
    waits = "".join(timed_out("2.6", rank, 9) for rank in range(3))
    assert 1 not in verdict(waits + _DESYNC.format("1")).culprits, "rank 1 waits as the others do"
    of_group = "".join(timed_out("2.6", 2 * place, 9, place=place, name="dp", number=4) for place in (0, 2))
    assert verdict(of_group + _DESYNC.format("1")).culprits != (1,), "places in a group are no ranks"
    assert told(waits + ranked(RAISED, 3) + _DESYNC.format("3")) == ("rank_raised", (3,))


def test_a_call_of_another_vendors_library_that_failed_accuses_nobody() -> None:
    raised = RAISED.replace(
        "ValueError: shard 17 is empty",
        "RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function error: HcclAllreduce, "
        "error code is 6",
    )
    assert verdict(ranked(raised, 1) + ranked(raised, 2)).culprits == ()


def test_silence_shows_nothing_where_the_first_that_waited_aborts_at_once() -> None:
    """torch 2.0 names no group and waits for nobody's dump: who was cleared away first said nothing, either."""
    log = "".join(timed_out("2.0", rank, 8) for rank in (0, 2, 3))
    assert verdict(log).culprits == ()


def test_where_nothing_names_the_group_another_number_accuses_nobody() -> None:
    """torch 2.0 names no group, and each counts by itself: the one far ahead waits in a group of its own."""
    others = "".join(timed_out("2.0", rank, 3) for rank in (1, 3, 4, 5, 6, 7))
    assert told(others + timed_out("2.0", 0, 21, "_REDUCE_SCATTER_BASE")) == ("collective_mismatch", ())


def test_where_nothing_names_the_group_and_anybody_waits_elsewhere_one_of_another_call_is_not_to_blame() -> None:
    """Rank 0 of several groups of torch 2.0; the wait under number 85 tells that there are several."""
    others = "".join(timed_out("2.0", rank, 10, "ALLGATHER") for rank in range(1, 8))
    odd = timed_out("2.0", 0, 10, "_REDUCE_SCATTER_BASE")
    assert told(others + odd) == ("collective_mismatch", (0,))
    assert told(others + odd + timed_out("2.0", 8, 85, "_ALLGATHER_BASE")) == ("collective_mismatch", ())


@pytest.mark.parametrize(("others", "odd"), [((4, 5, 9, 12, 13, 27), (0,)), (range(2, 16), (0, 1))])
def test_where_nothing_names_the_group_those_of_another_call_may_be_in_a_group_with_mates(
    others: Sequence[int], odd: Sequence[int]
) -> None:
    """Of the silent ranks some may have stood beside the one, and were cleared away; two may be a group."""
    log = "".join(timed_out("2.0", rank, 2) for rank in others)
    log += "".join(timed_out("2.0", rank, 2, "_ALLGATHER_BASE") for rank in odd)
    assert told(log) == ("collective_mismatch", ())


@pytest.mark.parametrize(
    ("silent", "named"), [((2,), True), ((1, 4), True), ((4, 5, 6), True), ((4, 5), False), ((4, 5, 6, 7), False)]
)
def test_all_of_what_may_be_a_node_are_cleared_away_with_the_one_that_died(
    silent: tuple[int, ...], named: bool
) -> None:
    waiting = [rank for rank in range(12) if rank not in silent]
    log = _BEFORE + "".join(timed_out("2.8", rank, 9, "_ALLGATHER_BASE", size=10, out=120) for rank in waiting)
    found = verdict(log + AGENT["2.4"].format(code=-6, rank=0, pid=5001))
    assert (found.cause, found.culprits) == (("not_entered", silent) if named else ("undecided", ()))
    assert named or any("printed nothing" in rejected.why for rejected in found.rejected)


def test_ranks_that_wait_in_several_calls_are_not_said_to_wait_in_one() -> None:
    log = timed_out("2.6", 0, 9, "ALLGATHER") + timed_out("2.6", 1, 17, "ALLREDUCE", place=0, name="mesh_tp", number=4)
    found = verdict(log)
    assert (found.cause, found.operation, found.seq) == ("undecided", None, None)
    assert "Ranks 0-1 wait in communication" in found.summary
    alone = verdict(timed_out("2.6", 0, 9, "ALLGATHER"))
    assert (alone.cause, alone.operation, alone.seq) == ("undecided", "all_gather", 9)


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (timed_out("2.6", 0, 22, "BROADCAST", size=4096), "another number of times"),
        (timed_out("2.6", 0, 21, "BROADCAST"), "branch"),
    ],
)
def test_steps_for_calls_that_differ_where_nobody_is_named_speak_of_these_and_of_no_abort(
    other: str, cause: str
) -> None:
    found = verdict(timed_out("2.6", 1, 21) + other)
    assert (found.cause, found.culprits) == ("collective_mismatch", ())
    assert "aborted" not in str(found.next_steps)
    assert cause in str(found.next_steps)


@pytest.mark.parametrize("version", ["2.3", "2.4", "2.5", "2.6"])
def test_ranks_of_which_only_the_second_line_is_left_are_told_with_what_they_wait_in(version: str) -> None:
    """Posts are cut: torch's first line names the operation, the second one the group and the numbers."""
    found = verdict("".join(timed_out(version, rank, 32).splitlines()[1] + "\n" for rank in (1, 3, 8)))
    assert (found.cause, found.waiting, found.seq) == ("undecided", "1,3,8", 32)
    assert "wait in a collective number 32" in found.summary
    assert "flight recorder" in found.next_steps[0]
    assert found.because[0].source
