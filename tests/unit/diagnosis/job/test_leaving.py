"""A rank stands at a barrier where no other rank is: its data ended, it raised, or the barrier is one too many."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import SHARED_LOG, Attempt, Evidence, RankEvidence, SourceBlock, SourceLine
from stallwatch.model.hook_report import CodeFrame, Handled, HookReport, NamedCall
from stallwatch.model.verdict import Verdict
from tests.builders.job import Call, Rank, evidence, loop, world
from tests.builders.rank_evidence import logged

W = world(4)
JOB = "/srv/job/train.py"
C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOOP = SourceBlock("for", 20, "for step in range(100):")
INNER = SourceBlock("for", 22, "for batch in loader:")
EXCEPT = SourceBlock("except", 40, "except Exception:")
STEPS = loop(W, 6)


def _stands(function: str, line: int) -> tuple[CodeFrame, ...]:
    return CodeFrame(function, C10D, 3000), CodeFrame("<module>", JOB, line)


def _source(line: int, *blocks: SourceBlock) -> tuple[SourceLine, ...]:
    return (SourceLine(JOB, line, "dist.call()", blocks),)


def _parted(
    odd: tuple[SourceBlock, ...] | None, usual: tuple[SourceBlock, ...], barrier: str = "barrier", at: int = 50
) -> Evidence:
    """Rank 2 is in a barrier under the number of the others' all_reduce."""
    ranks = []
    for rank in range(4):
        calls = (*STEPS, Call(W, barrier, line=at) if rank == 2 else STEPS[0])
        frames = _stands(barrier, at) if rank == 2 else _stands("all_reduce", 30)
        told = Rank(rank, calls, len(STEPS), frames, wchan="futex_do_wait", backend="gloo").evidence()
        if odd is not None:
            told = replace(told, sources=_source(at, *odd) if rank == 2 else _source(30, *usual))
        ranks.append(told)
    return replace(evidence(world_size=4), ranks=tuple(ranks))


def _with(found: Evidence, rank: int, **changes: object) -> Evidence:
    return replace(found, ranks=tuple(replace(r, **changes) if r.rank == rank else r for r in found.ranks))


def _scene(kind: str, file: str = JOB) -> tuple[HookReport, ...]:
    return (HookReport("scene.json", 2, Handled(kind, (CodeFrame("load", file, 7),)), ()),)


def _judged(found: Evidence) -> Verdict:
    return judge(found).verdicts[0]


def test_a_barrier_past_the_loop_is_data_that_ended_and_never_certain() -> None:
    verdict = _judged(_parted((), (LOOP,)))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("data_exhausted", (2,), "likely")
    assert any("rank_raised" in text for text in verdict.missing)


def test_without_the_source_it_is_likely_and_the_other_reading_is_named() -> None:
    verdict = _judged(_parted(None, ()))
    assert (verdict.cause, verdict.confidence) == ("data_exhausted", "likely")
    assert any("rank_raised" in text for text in verdict.missing)


def test_a_barrier_within_the_loop_is_a_call_of_its_own() -> None:
    verdict = _judged(_parted((LOOP, SourceBlock("if", 48, "if rank == 0:")), (LOOP,)))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (2,))


@pytest.mark.parametrize(
    ("outer", "inner", "cause"),
    [
        (LOOP, INNER, "data_exhausted"),
        (
            SourceBlock("for", 20, "for epoch in range(9):"),
            SourceBlock("for", 22, "for i in range(n):"),
            "data_exhausted",
        ),
        (LOOP, SourceBlock("for", 22, "for layer in layers:"), "collective_mismatch"),
    ],
)
def test_of_a_loop_within_a_loop_only_one_over_data_ends_with_it(
    outer: SourceBlock, inner: SourceBlock, cause: str
) -> None:
    assert _judged(_parted((outer,), (outer, inner))).cause == cause


def test_another_call_than_a_barrier_past_the_loop_is_the_next_phase() -> None:
    verdict = _judged(_parted((), (LOOP,), barrier="broadcast"))
    assert (verdict.cause, verdict.culprits) == ("data_exhausted", (2,))


@pytest.mark.parametrize("barrier", ["barrier", "gather"])
def test_who_stands_before_the_loop_of_the_others_has_not_left_it(barrier: str) -> None:
    """`if rank == 0: save()`, with collectives inside, between two phases of training."""
    verdict = _judged(_parted((), (LOOP,), barrier, at=12))
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (2,))
    epochs = SourceBlock("for", 5, "for epoch in range(9):")  # the next epoch begins before the loop, too
    assert _judged(_parted((epochs,), (epochs, LOOP), barrier, at=12)).cause == "data_exhausted"


FIT = CodeFrame("fit", "/opt/venv/lib/python3.11/site-packages/lightning/pytorch/trainer.py", 500)


@pytest.mark.parametrize(("between", "cause"), [((), "data_exhausted"), ((FIT,), "collective_mismatch")])
def test_by_stacks_alone_who_left_the_loop_is_told_unless_a_framework_loops_around_it(
    between: tuple[CodeFrame, ...], cause: str
) -> None:
    """A framework that calls the loop's function has loops that nobody has read, and rank 2 may be in these:
    all that is seen is that it calls from another line."""
    ranks = []
    for rank in range(4):
        line, name = (50, "<module>") if rank == 2 else (30, "step")
        outer = () if rank == 2 else (*between, CodeFrame("<module>", JOB, 40))
        frames = (CodeFrame("all_reduce", C10D, 3000), CodeFrame(name, JOB, line), *outer)
        told = Rank(rank, frames=frames, wchan="futex_do_wait", dumped=False, backend="gloo").evidence()
        ranks.append(replace(told, sources=_source(line, *(() if rank == 2 else (LOOP,)))))
    verdict = _judged(replace(evidence(world_size=4), ranks=tuple(ranks)))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == (cause, (2,), "possible")


def test_an_exception_that_only_this_rank_handles_is_the_cause() -> None:
    verdict = _judged(_with(_parted((), (LOOP,)), 2, scenes=_scene("ValueError")))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_raised", (2,), "likely")
    assert "ValueError" in verdict.summary
    assert "train.py:7" in verdict.summary


def test_who_works_on_while_it_handles_an_exception_has_not_left_for_it() -> None:
    """Compilers and those who try again live in an `except`."""
    found = _parted((), (LOOP,))
    works = Rank(2, STEPS, len(STEPS), (CodeFrame("<module>", JOB, 50),), state="R", backend="gloo").evidence()
    found = _with(found, 2, recorders=works.recorders, stacks=works.stacks, processes=works.processes)
    verdict = _judged(_with(found, 2, scenes=_scene("ValueError")))
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


@pytest.mark.parametrize("kind", ["StopIteration", "SystemExit", "DistBackendError"])
def test_an_end_in_order_and_a_peers_fault_are_no_exception_of_its_own(kind: str) -> None:
    assert _judged(_with(_parted((), (LOOP,)), 2, scenes=_scene(kind))).cause == "data_exhausted"


def test_what_torch_distributed_raised_may_be_a_peers_fault() -> None:
    assert _judged(_with(_parted((), (LOOP,)), 2, scenes=_scene("RuntimeError", C10D))).cause == "data_exhausted"


def test_an_exception_that_others_handle_as_well_explains_nothing() -> None:
    """The whole program runs in an `except ImportError`."""
    found = _parted((), (LOOP,))
    for rank in range(4):
        found = _with(found, rank, scenes=_scene("ImportError"))
    assert _judged(found).cause == "data_exhausted"


def test_a_rank_in_an_except_block_raised_something() -> None:
    verdict = _judged(_parted((EXCEPT,), (LOOP,)))
    assert (verdict.cause, verdict.culprits) == ("rank_raised", (2,))


def test_not_where_the_others_stand_in_one_as_well() -> None:
    assert _judged(_parted((EXCEPT,), (EXCEPT, LOOP))).cause != "rank_raised"


def _logged(found: Evidence, *lines: str) -> Evidence:
    attempt = Attempt("log", 1, 0, True, SHARED_LOG)
    ranks = tuple(replace(rank, log=lines, log_events=logged(*lines), attempts=(attempt,)) for rank in found.ranks)
    return replace(found, ranks=ranks)


_TRACEBACK = ("Traceback (most recent call last):", '  File "/srv/job/train.py", line 7, in load', "KeyError: 'shard'")


def test_the_traceback_that_ends_a_shared_log_is_of_the_one_that_left() -> None:
    verdict = _judged(_logged(_parted((), (LOOP,)), "step 5", *_TRACEBACK))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_raised", (2,), "likely")
    assert "KeyError" in verdict.summary


def test_a_traceback_after_which_the_log_goes_on_is_not() -> None:
    lines = (*_TRACEBACK, *(f"step {number}" for number in range(30)))
    assert _judged(_logged(_parted((), (LOOP,)), *lines)).cause == "data_exhausted"


def test_a_traceback_says_nothing_of_a_rank_that_is_in_the_loop() -> None:
    assert _judged(_logged(_parted((LOOP,), (LOOP,)), *_TRACEBACK)).cause == "collective_mismatch"


def _rooted(roots: dict[int, int | None]) -> Evidence:
    """Ranks 0 and 2 wait in a broadcast that 1 and 3 have left; the hooks tell which root each of them named."""
    calls = (*STEPS, Call(W, "broadcast", line=60))
    ranks: list[RankEvidence] = []
    for rank in range(4):
        later = (*calls, Call(W, "all_reduce", line=61)) if rank in (1, 3) else calls
        frames = _stands("all_reduce" if rank in (1, 3) else "broadcast", 60)
        told = Rank(rank, later, len(later) - 1, frames, wchan="futex_do_wait", backend="gloo").evidence()
        if rank in roots:
            call = NamedCall("broadcast", False, roots[rank], str(told.pid))
            told = replace(told, scenes=(HookReport("scene.json", 2, None, (call,)),))
        ranks.append(told)
    return replace(evidence(world_size=4), ranks=tuple(ranks))


def test_a_rank_that_names_another_root_is_told() -> None:
    verdict = _judged(_rooted({0: 0, 2: 1}))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (2,), "likely")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.expected, verdict.mismatch.found) == ("broadcast with root 0", "broadcast with root 1")


@pytest.mark.parametrize("roots", [{0: 3, 2: 1}, {0: 0, 2: 2}], ids=["both elsewhere", "both here"])
def test_of_two_roots_that_are_as_good_none_is_the_right_one_and_nobody_is_named(roots: dict[int, int | None]) -> None:
    verdict = _judged(_rooted(roots))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (), "possible")
    for rank, root in roots.items():
        assert f"rank {rank} called broadcast with root {root} at /srv/job/train.py:60" in verdict.summary
    assert "nothing tells which of them is right" in verdict.summary


def test_without_the_roots_a_broadcast_that_stands_is_only_possibly_the_networks_fault() -> None:
    verdict = _judged(_rooted({}))
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("comm_stuck", (), "possible")
    assert any("root" in text for text in verdict.missing)


def test_with_one_root_on_all_it_is_likely() -> None:
    assert _judged(_rooted({0: 0, 2: 0})).confidence == "likely"
