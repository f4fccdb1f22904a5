"""Calls that differ where nobody is to be named: no majority, and two threads of each rank in one group."""

from dataclasses import replace

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Recorder, SourceBlock, SourceLine
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, loop, world

W4 = world(4)
STEPS = loop(W4, 5)
DONE = len(STEPS)


def test_without_a_majority_it_is_said_who_called_what_and_nobody_is_named() -> None:
    calls = [Call(W4, "all_reduce", 900, line=70)] + [Call(W4, "broadcast", size, line=71) for size in (64, 64, 4096)]
    verdict = judge(evidence(*(Rank(r, (*STEPS, calls[r]), DONE) for r in range(4)))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (), "possible")
    for said in (
        "ranks 1-2 called broadcast of 64 elements Float at /srv/job/train.py:71",
        "rank 0 called all_reduce of 900 elements Float at /srv/job/train.py:70",
        "rank 3 called broadcast of 4096 elements Float at /srv/job/train.py:71",
    ):
        assert said in verdict.summary


def test_two_and_two_are_told_as_two_parts() -> None:
    calls = [Call(W4, "all_gather" if rank % 2 else "all_reduce", line=70 + rank % 2) for rank in range(4)]
    verdict = judge(evidence(*(Rank(r, (*STEPS, calls[r]), DONE) for r in range(4)))).verdicts[0]
    assert verdict.culprits == ()
    assert "ranks 0,2 called all_reduce at" in verdict.summary
    assert "ranks 1,3 called all_gather at" in verdict.summary


def test_what_one_of_two_calls_after_they_parted_names_nobody() -> None:
    """Rank 0's last call but one was followed by another group's call once, and by what ends the first round now; rank
    1 does the same, but what it called before is its other operation, of which no habit is known."""
    pair, other = world(2), Group("1", "pp", (0, 1), 1)
    first, second = (Call(other, elements=5, line=line) for line in (50, 30))
    back, after = Call(pair, elements=8, line=60), Call(pair, elements=9, line=90)
    begun = (Call(pair, elements=4), first, back, second)
    ranks = [Rank(0, (*begun, back, after), 4), Rank(1, (*begun, replace(back, name="broadcast"), after), 4)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (), "possible")
    assert "rank 1 called broadcast" in verdict.summary


TRAINS = Call(W4, "all_reduce", 500, line=10)
SAVES = Call(W4, "barrier", line=80, thread="2")


@pytest.mark.parametrize("swapped", [(2,), (0, 1), (1, 2, 3)])
def test_two_threads_that_share_a_group_race_and_took_no_branch(swapped: tuple[int, ...]) -> None:
    ranks = [Rank(r, (*STEPS, *((SAVES, TRAINS) if r in swapped else (TRAINS, SAVES))), DONE) for r in range(4)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())
    assert "two threads" in verdict.summary


def test_what_another_thread_called_is_not_said_to_be_at_the_line_of_the_one_that_was_judged() -> None:
    """torch.distributed.checkpoint's thread gathers in the group in whose barrier the training thread stands, and
    gloo's recorder tells no lines: of the gather it was said that it was called at the barrier's."""
    c10d = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    at_barrier = (CodeFrame("barrier", c10d, 5356), CodeFrame("save", "/srv/job/train.py", 80),
                  CodeFrame("<module>", "/srv/job/train.py", 99))  # fmt: skip
    gathers, barrier = replace(TRAINS, name="all_gather", elements=4, thread="7"), replace(SAVES, thread="1")
    ends = [(barrier, gathers) if rank == 3 else (gathers, barrier) for rank in range(4)]
    stands = [Rank(r, (*STEPS, *ends[r]), DONE, at_barrier, wchan="futex_do_wait", backend="gloo") for r in range(4)]
    told = evidence(*stands)
    ranks = tuple(
        msgspec.structs.replace(rank, recorders=tuple(map(_without_lines, rank.recorders))) for rank in told.ranks
    )
    verdict = judge(msgspec.structs.replace(told, ranks=ranks)).verdicts[0]
    assert "ranks 0-2 called all_gather; rank 3 called barrier at /srv/job/train.py:80" in verdict.summary
    assert "process_group=" in verdict.next_steps[0]
    assert not any("Compare the code paths" in step for step in verdict.next_steps), "it is chance, and nobody's branch"


def _without_lines(recorder: Recorder) -> Recorder:
    operations = tuple(msgspec.structs.replace(entry, frames=()) for entry in recorder.operations)
    return msgspec.structs.replace(recorder, operations=operations)


def test_one_thread_that_swaps_two_calls_took_a_branch_of_its_own() -> None:
    own = replace(SAVES, thread="1")
    ranks = [Rank(r, (*STEPS, *((own, TRAINS) if r == 2 else (TRAINS, own))), DONE) for r in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].culprits == (2,)


_IN_CALL = CodeFrame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000)


def test_the_sentence_says_where_the_others_called_what_the_culprit_did_not() -> None:
    waits = (_IN_CALL, CodeFrame("step", "/srv/job/train.py", 10), CodeFrame("<module>", "/srv/job/train.py", 99))
    ranks = [Rank(r, (*STEPS, STEPS[0]), DONE, frames=waits, wchan="futex_do_wait", backend="gloo") for r in range(3)]
    verdict = judge(evidence(*ranks, Rank(3, STEPS, frames=SLEEPS, backend="gloo"))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))
    assert "called at /srv/job/train.py:10 in step" in verdict.summary
    assert verdict.waiting_at == "called at /srv/job/train.py:10 in step"


def test_a_sleep_is_told_with_the_loop_that_it_waits_in() -> None:
    ranks = [Rank(r, (*STEPS, STEPS[0]), DONE, frames=SLEEPS[1:]) for r in range(3)]
    late = Rank(3, STEPS, frames=SLEEPS).evidence()
    header = SourceBlock("while", 6, "while not path.exists():")
    line = SourceLine(SLEEPS[0].filename, SLEEPS[0].line, "time.sleep(1)", (header,))
    told = evidence(*ranks, world_size=4)
    told = msgspec.structs.replace(told, ranks=(*told.ranks, msgspec.structs.replace(late, sources=(line,))))
    verdict = judge(told).verdicts[0]
    assert verdict.culprits == (3,)
    assert "time.sleep(1)" in verdict.summary
    assert "while not path.exists():" in verdict.summary


def test_a_group_of_another_stage_that_calls_in_another_order_is_no_witness() -> None:
    """One forward one backward: the first stage gathers twice, then reduces twice; the last one in turns."""
    first, last = Group("1", "dp", (0, 1), 1), Group("1", "dp", (2, 3), 1)

    def step(group: Group, order: str) -> tuple[Call, ...]:
        calls = {"F": Call(group, "_all_gather_base", 500, line=10), "B": Call(group, "all_reduce", 7, line=20)}
        return tuple(calls[letter] for letter in order)

    whole, short = step(first, "FFBBFFBBFF"), step(first, "FFBBFFBBFB")
    others = step(last, "FBFBFBFBFB")
    told = judge(
        evidence(
            Rank(0, short, 9),
            Rank(1, whole, 9),
            *(Rank(rank, others, 10) for rank in (2, 3)),
        )
    ).verdicts[0]
    assert (told.cause, told.culprits) == ("collective_mismatch", (0,))
