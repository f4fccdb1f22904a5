"""Of ranks that others wait for, which have not entered: not those that move, nor those that wait for the GPU."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.analysis import analyze_job
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import CodeFrame, RankEvidence
from stallwatch.model.hook_report import HookReport, NamedCall
from tests.builders.job import IN_RECV, SLEEPS, Rank, evidence, loop, world

STEPS = loop(world(4), 6)
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/"
_STEP = CodeFrame("step", "/srv/job/train.py", 12)
IN_SYNC = (CodeFrame("synchronize", f"{_TORCH}cuda/__init__.py", 900), _STEP, SLEEPS[-1])
AT_LOCK = (CodeFrame("Event.wait", "/usr/lib/python3.11/threading.py", 629), _STEP, SLEEPS[-1])
IN_STORE = (CodeFrame("barrier", f"{_TORCH}distributed/elastic/utils/store.py", 180), _STEP, SLEEPS[-1])


def _stands(rank: int, frames: tuple[CodeFrame, ...], backend: str = "gloo", state: str = "S") -> RankEvidence:
    sleeps = "hrtimer_nanosleep" if frames == SLEEPS else "futex_do_wait"
    wchan = None if state == "R" else sleeps
    return Rank(rank, STEPS, backend=backend, frames=frames, state=state, wchan=wchan).evidence()


def _waits(rank: int, backend: str = "gloo") -> RankEvidence:
    calls = (*STEPS, STEPS[0])
    return Rank(rank, calls, len(STEPS), backend=backend, wchan="futex_do_wait").evidence()


def _moves(rank: int) -> RankEvidence:
    """At another line of the job's own code at its second look."""
    stands = _stands(rank, SLEEPS, state="R")
    first, second = stands.stacks
    (thread,) = second.threads
    frames = (replace(thread.frames[0], line=99), *thread.frames[1:])
    works = tuple(replace(process, cpu_ticks=500 * process.look) for process in stands.processes)
    stacks = (first, replace(second, threads=(replace(thread, frames=frames),)))
    return replace(stands, stacks=stacks, processes=works)


def _receives(rank: int, peer: int) -> RankEvidence:
    told = _stands(rank, IN_RECV)
    call = NamedCall("recv", is_transfer=True, rank=peer, thread=str(told.pid))
    return replace(told, scenes=(HookReport("scene.json", 2, None, (call,)),))


def _judged(*ranks: RankEvidence) -> tuple[str, list[int]]:
    verdict = judge(replace(evidence(world_size=4), ranks=ranks)).verdicts[0]
    return verdict.cause, list(verdict.culprits)


def test_beside_one_that_stands_elsewhere_one_that_moves_is_not_named() -> None:
    receive = [_stands(rank, IN_RECV) for rank in (0, 1)]
    assert _judged(*receive, _stands(2, SLEEPS), _moves(3)) == ("not_entered", [2])
    assert _judged(*receive, _moves(2), _moves(3))[1] == []


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_one_that_waits_for_the_gpu_with_nothing_pending_is_not_named(backend: str) -> None:
    """Some communication is in no record. A line of the job's own that spins so is another matter."""
    waits = [_waits(rank, backend) for rank in (0, 1, 2)]
    assert _judged(*waits, _stands(3, IN_SYNC, backend, "R"))[1] == []
    assert _judged(*waits, _stands(3, IN_SYNC[1:], backend, "R")) == ("not_entered", [3])


def test_of_one_that_stands_at_the_store_nobody_knows_whom_it_waits_for_where_no_recorder_shows_a_wait() -> None:
    receive = [_receives(0, 1), _receives(2, 0), _receives(3, 0)]
    assert _judged(*receive, _stands(1, IN_STORE)) == ("undecided", [])
    assert _judged(*receive, _stands(1, SLEEPS)) == ("not_entered", [1])


@pytest.mark.parametrize(("frames", "confidence"), [(IN_STORE, "likely"), (AT_LOCK, "certain")])
def test_who_waits_for_a_key_of_the_store_waits_for_whoever_sets_it(
    frames: tuple[CodeFrame, ...], confidence: str
) -> None:
    """Rank 0 went on without setting it: that it is none of the others is not certain."""
    ranks = (_waits(0, "nccl"), *(_stands(rank, frames, "nccl") for rank in (1, 2, 3)))
    verdict = judge(replace(evidence(world_size=4), ranks=ranks, looks=2)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (1, 2, 3), confidence)


def _absent(*ranks: RankEvidence) -> tuple[int, ...]:
    activities = {rank.rank: read_activity(rank) for rank in ranks}
    case = Case([reduce_rank(rank) for rank in ranks], activities, 4, (), {rank.rank: rank for rank in ranks}, 2)
    return analyze_job(case).absent


IN_NATIVE = (CodeFrame("exchange", "/srv/job/ring.py", 4), SLEEPS[-1])


def test_where_no_recorder_shows_a_wait_one_in_a_native_call_may_itself_be_waiting() -> None:
    """gloo's Work.wait has no frame: by its hook rank 0 waits for rank 1, and for whom that one waits nobody says."""
    native = replace(_stands(1, IN_NATIVE), processes=_waits(1).processes)
    others = [_stands(rank, IN_RECV) for rank in (2, 3)]
    assert _absent(_receives(0, 1), native, *others) == ()
    assert _absent(_receives(0, 1), replace(native, recorders=()), *others) == ()
    assert _absent(_receives(0, 1), _stands(1, SLEEPS), *others) == (1,)


def test_all_others_wait_for_the_one_that_is_in_a_transfer_and_of_two_nobody_knows_which() -> None:
    alone = [*(_waits(rank) for rank in (0, 1, 2)), _stands(3, IN_RECV)]
    assert _absent(*alone) == (3,)
    assert _absent(*alone[:2], _stands(2, IN_RECV), alone[3]) == ()


def test_who_waits_for_a_thread_of_its_own_that_waits_in_a_collective_is_not_who_has_not_come() -> None:
    """Rank 1 stands at a lock, all others gather in threads of an executor. Of rank 2, the only one with a dump, which
    broke off, the main thread is the one that is judged."""
    c10d = f"{_TORCH}distributed/distributed_c10d.py"
    gathers = (CodeFrame("gather_object", c10d, 3631), CodeFrame("gather_metrics", "/srv/job/lib.py", 59))
    futures = "/usr/lib/python3.11/concurrent/futures/"
    waits = (
        CodeFrame("Future.result", f"{futures}_base.py", 451),
        CodeFrame("train", "/srv/job/train.py", 81),
        SLEEPS[-1],
    )
    in_main = (*gathers, SLEEPS[-1])
    pooled = (*gathers, CodeFrame("_worker", f"{futures}thread.py", 83))
    ranks = [
        Rank(r, dumped=False, backend="gloo", frames=f, wchan="futex_do_wait")
        for r, f in ((0, in_main), (1, AT_LOCK), (3, in_main))
    ]
    told = Rank(2, STEPS, backend="gloo", frames=waits, wchan="futex_do_wait").evidence()
    looks = []
    for look in told.stacks:
        main = replace(look.threads[0], ident=1)
        looks.append(
            replace(look, threads=(main, replace(main, name="metrics_0", os_thread_id=7, ident=2, frames=pooled)))
        )
    rings = tuple(replace(ring, cut_short=True) for ring in told.recorders)
    broken = replace(told, stacks=tuple(looks), recorders=rings)
    assert _judged(*(rank.evidence() for rank in ranks), broken) == ("not_entered", [1])
