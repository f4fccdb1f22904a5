"""One sentence for every cause: who, where in its code, what it does there, who waits."""

from typing import Any, get_args

import pytest

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.activity.flat import FlatActivity, unflatten
from stallwatch.diagnosis.report.sentences import summary
from stallwatch.diagnosis.report.text import SentenceExtras, format_location
from stallwatch.model.verdict import Cause, CulpritProcess, Fact, Frame, GroupRef, Mismatch, Verdict

LINE = Frame("/srv/job/train.py", 88, "Loader.<locals>.load", "with self.lock:")


def verdict(cause: Cause, *culprits: int, confidence: str = "certain", **fields: Any) -> Verdict:
    values: dict[str, Any] = {
        "waiting": "0-1,3",
        "operation": "all_reduce",
        "seq": 12,
        "process_group": GroupRef("default_pg", (0, 1, 2, 3)),
    }
    return Verdict(cause, culprits, confidence, "", **(values | fields))  # type: ignore[arg-type]


def activity(rank: int = 2, **fields: Any) -> RankActivity:
    values: dict[str, Any] = {
        "host": "node0", "pid": 700, "where": "lock", "detail": "waits for a lock", "frame": LINE,
    }  # fmt: skip
    return unflatten(FlatActivity(rank=rank, **(values | fields)))


def say(told: Verdict, *activities: RankActivity) -> str:
    return summary(told, {one.rank: one for one in activities})


def test_a_certain_culprit_is_named_with_its_line_and_who_waits_for_it() -> None:
    assert say(verdict("not_entered", 2), activity()) == (
        "Rank 2 (pid 700 on node0) waits for a lock at /srv/job/train.py:88 in load (`with self.lock:`); "
        "ranks 0-1,3 wait for it in all_reduce number 12."
    )


@pytest.mark.parametrize(
    ("where", "detail", "said"),
    [
        ("lock", "waits for the result of a background task", "while that thread sleeps at"),
        ("socket", "waits in its asyncio event loop", "while its executor's thread sleeps at"),
    ],
)
def test_the_thread_that_a_culprit_waits_for_is_told_with_its_line(where: str, detail: str, said: str) -> None:
    waits = activity(where=where, detail=detail, awaited_frame=LINE, awaited_detail="sleeps")
    assert f"{said} /srv/job/train.py:88 in load" in say(verdict("not_entered", 2), waits)


def test_what_is_not_certain_is_consistent_with() -> None:
    assert say(verdict("not_entered", 2, confidence="likely"), activity(frame=None)) == (
        "Rank 2 (pid 700 on node0) waits for a lock; ranks 0-1,3 wait in all_reduce number 12, "
        "consistent with rank 2 not having entered it."
    )


def test_an_unknown_culprit_is_said_to_be_unknown() -> None:
    assert say(verdict("not_entered", 2)) == (
        "Rank 2 has not entered all_reduce number 12, in which ranks 0-1,3 wait; what it does is not known."
    )


def test_a_group_other_than_the_default_is_named() -> None:
    told = verdict("not_entered", 2, waiting="3", process_group=GroupRef("mesh_dp", (2, 3)))
    assert say(told, activity(frame=None)).endswith(
        "rank 3 waits for it in all_reduce number 12 of process group mesh_dp."
    )


def test_many_culprits_at_one_line_are_said_once() -> None:
    told = verdict("not_entered", 4, 5, 6, 9)
    assert say(told, *(activity(rank, pid=700 + rank) for rank in told.culprits)).startswith(
        "Each of ranks 4-6,9 (on node0) waits for a lock at /srv/job/train.py:88"
    )


def test_culprits_at_different_lines_are_told_apart_fewest_first() -> None:
    told = verdict("not_entered", 4, 5, 6)
    sleeper = activity(6, where="user_code", detail="sleeps", frame=Frame("/srv/job/train.py", 9, "main"))
    text = say(told, activity(4), activity(5), sleeper)
    assert text.startswith("Rank 6 sleeps at /srv/job/train.py:9 in main and each of ranks 4-5 waits for a lock at ")


def test_the_worker_that_is_stuck_is_shown() -> None:
    loader = activity(
        where="dataloader",
        detail="waits for its workers",
        child_pid=801,
        child_frame=Frame("/srv/job/data.py", 5, "read"),
    )
    text = say(verdict("not_entered", 2), loader)
    assert ", while its child process 801 is at /srv/job/data.py:5 in read; ranks" in text


def test_the_verdicts_own_place_wins_over_the_activity() -> None:
    there = CulpritProcess(2, "node9", 1, where="gil", frame=Frame("/srv/job/gil.py", 1, "pack"))
    text = say(verdict("not_entered", 2, culprit_processes=(there,)), activity())
    assert text.startswith(
        "Rank 2 (pid 1 on node9) holds the GIL in a call that does not give it back at /srv/job/gil.py:1"
    )


@pytest.mark.parametrize(
    ("mismatch", "expected"),
    [
        (Mismatch("op", "all_reduce", "_all_gather_base"),
         "called all_gather_into_tensor at {line} where the other ranks called all_reduce"),
        (Mismatch("size", "4 elements", "8 elements"),
         "entered all_reduce number 12 at {line} with 8 elements where the others have 4 elements"),
        (Mismatch("dtype", "Float", "Int"), "with data type Int where the others have Float"),
        (Mismatch("count", "8 calls", "7 calls"), "made 7 calls at {line} where the other ranks made 8 calls"),
        (None, "entered another operation at {line} than the others"),
    ],
)  # fmt: skip
def test_a_mismatch_says_what_was_found_and_what_was_expected(mismatch: Mismatch | None, expected: str) -> None:
    inside = activity(where="collective", detail="waits in all_gather", in_collective=True, frame=LINE)
    text = say(verdict("collective_mismatch", 2, mismatch=mismatch), inside)
    assert expected.format(line="/srv/job/train.py:88 in load (`with self.lock:`)") in text


def test_a_line_reached_after_the_call_is_not_called_the_line_of_the_call() -> None:
    later = activity(where="gpu_sync", detail="waits for its GPU", in_collective=False)
    text = say(verdict("collective_mismatch", 2, mismatch=Mismatch("op", "all_reduce", "broadcast")), later)
    assert "called broadcast where" in text
    assert "it now waits for its GPU at /srv/job/train.py:88" in text


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ({"exit_signal": 9, "out_of_memory": True}, "was killed by the kernel because memory ran out"),
        ({"exit_signal": 9}, "was ended by SIGKILL, sender not known"),
        ({"exit_signal": 11}, "was ended by SIGSEGV"),
        ({"exit_code": 1, "exception": "ValueError: bad shard"}, "exited with code 1 after ValueError: bad shard"),
        ({"exit_code": 1, "exception": "RuntimeError: Connection closed", "exception_is_consequence": True},
         "exited with code 1; "),
        ({"exit_code": 0}, "ended without an error while other ranks still ran"),
        ({}, "is gone; how the process ended is not known"),
    ],
)  # fmt: skip
def test_a_death_is_told_as_far_as_it_is_known(ended: dict[str, Any], expected: str) -> None:
    assert expected in say(verdict("rank_exited", 2), activity(gone=True, frame=None, where="unknown", **ended))


def test_ranks_that_died_of_it_are_named_as_followers() -> None:
    dead = activity(gone=True, exit_signal=9)
    follower = activity(0, gone=True, exception="RuntimeError: x", exception_is_consequence=True)
    assert say(verdict("rank_exited", 2, waiting=""), dead, follower).endswith(
        "; rank 0 then lost the connection and ended too."
    )


def test_an_exception_in_teardown_is_told_with_its_line() -> None:
    ending = activity(
        where="teardown", detail="destroys its process groups", exception="ValueError: bad shard", exception_frame=LINE
    )
    assert "raised ValueError: bad shard at /srv/job/train.py:88 in load" in say(verdict("rank_raised", 2), ending)


def test_a_debugger_is_told_from_a_stop_signal() -> None:
    assert "is held by the debugger with pid 41" in say(verdict("process_stopped", 2), activity(tracer_pid=41))
    assert "is held by a stop signal (SIGSTOP)" in say(verdict("process_stopped", 2), activity(stopped=True))
    frozen = activity(stopped=True, frozen=True)
    assert "is held by its control group, which is frozen" in say(verdict("process_stopped", 2), frozen)


def test_a_fault_of_hardware_quotes_what_reported_it() -> None:
    told = verdict("gpu_fault", 2, because=(Fact("XID 79: GPU has fallen off the bus", "kernel log of node0"),))
    assert say(told, activity()).startswith("The GPU of rank 2 (pid 700 on node0) reports a fault: XID 79")


@pytest.mark.parametrize("cause", get_args(Cause))
@pytest.mark.parametrize("culprits", [(), (2,), (4, 5, 9)])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("waiting", ["", "0", "0-1,3"])
@pytest.mark.parametrize("confidence", ["certain", "possible"])
def test_every_cause_is_one_plain_sentence(
    cause: Cause, culprits: tuple[int, ...], known: bool, waiting: str, confidence: str
) -> None:
    told = verdict(
        cause, *culprits, confidence=confidence, waiting=waiting, operation="all_reduce" if known else None,
        seq=12 if known else None, process_group=GroupRef("dp", (0, 1)) if known else None,
    )  # fmt: skip
    text = say(told, *(activity(rank) for rank in culprits if known))
    assert text[0].isupper()
    assert text.endswith(".")
    assert not text.endswith("..")
    assert "\n" not in text
    for wrong in ("None", "  ", " ;", " ,", "fixed by", "()", "unknown at"):
        assert wrong not in text, text
    if culprits and cause not in ("healthy", "job_ended", "undecided", "comm_stuck"):
        assert "4-5,9" in text if len(culprits) > 1 else "ank 2" in text, text
    if known and waiting and cause not in ("healthy", "job_ended", "comm_stuck", "collective_mismatch", "slow_rank"):
        assert waiting in text or len(culprits) > 1, text


@pytest.mark.parametrize(
    "cause",
    ["not_entered", "collective_mismatch", "data_exhausted", "group_order", "p2p_unmatched", "rank_exited",
     "rank_raised", "init_missing", "gpu_kernel_stuck", "gpu_fault", "fabric_fault"],
)  # fmt: skip
@pytest.mark.parametrize("culprits", [(2,), (4, 5)])
@pytest.mark.parametrize("known", [True, False])
def test_an_accusation_that_is_not_certain_says_consistent_with(
    cause: Cause, culprits: tuple[int, ...], known: bool
) -> None:
    activities = [activity(rank) for rank in culprits if known]
    text = say(verdict(cause, *culprits, confidence="likely"), *activities)
    assert "consistent with" in text or "is not known" in text or "are not known" in text


def test_the_call_itself_is_named_where_the_rank_has_gone_on_from_it() -> None:
    told = verdict("collective_mismatch", 2, mismatch=Mismatch("op", "all_reduce", "_all_gather_base"))
    waits = activity(2, where="gpu_sync", detail="waits for its GPU", frame=LINE, gpu_sync=True)
    text = summary(told, {2: waits}, SentenceExtras(site="/srv/job/train.py:40 vote"))
    assert "called all_gather_into_tensor at /srv/job/train.py:40 in vote where" in text
    assert "it now waits for its GPU at /srv/job/train.py:88" in text


def test_who_waits_elsewhere_is_not_said_to_wait_in_the_same_operation() -> None:
    told = verdict("not_entered", 2, waiting="0-1,3", process_group=GroupRef("dp1", (2, 3)))
    text = summary(told, {2: activity(frame=None)}, SentenceExtras(direct="3", behind="0-1"))
    assert text.endswith(
        "rank 3 waits for it in all_reduce number 12 of process group dp1, and ranks 0-1 wait behind that."
    )


def test_who_waits_for_the_same_one_in_another_operation_is_not_said_to_wait_behind_the_others() -> None:
    told = verdict("not_entered", 2, waiting="0-1,3", process_group=GroupRef("dp1", (2, 3)))
    for behind, said in (("0", "rank 1 in another operation, and rank 0 waits behind these."),
                         ("", "and rank 1 in another operation.")):  # fmt: skip
        text = summary(told, {2: activity(frame=None)}, SentenceExtras(direct="3", also="1", behind=behind))
        assert text.endswith(said)


def test_exhausted_data_names_the_call_that_only_a_recorder_shows() -> None:
    told = verdict("data_exhausted", 2, mismatch=Mismatch("op", "all_reduce", "all_reduce_barrier"))
    waits = activity(2, where="gpu_sync", detail="waits for its GPU", gpu_sync=True)
    text = summary(told, {2: waits}, SentenceExtras(site="/srv/job/train.py:99 main"))
    assert text.startswith("Rank 2 (pid 700 on node0) called barrier at /srv/job/train.py:99 in main, though ranks")


def test_a_transfer_whose_peer_nobody_recorded_is_not_blamed_on_one_side() -> None:
    waits = activity(2, where="collective", detail="waits for a send or receive", in_collective=True, frame=None)
    told = verdict("p2p_unmatched", 2, confidence="possible", process_group=None, operation="p2p", seq=None)
    assert say(told, waits) == (
        "Rank 2 (pid 700 on node0) waits for a send or receive, and the other side has not come; ranks 0-1,3 wait for "
        "it: consistent with a message that was never sent or received."
    )


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("loss.item()  # as a progress bar does: the host waits", "loss.item()"),
        ("""name = "a # b"  # of a run""", """name = "a # b\""""),
        ("x = s['#1'] + '# no comment'", "x = s['#1'] + '# no comment'"),
        ("# a comment alone", "# a comment alone"),
        ("it's torn # here", "it's torn # here"),
    ],
)
def test_the_comment_beside_a_line_of_code_is_not_said(source: str, shown: str) -> None:
    assert format_location(Frame("a.py", 4, "f", source)) == f"a.py:4 in f (`{shown}`)"
