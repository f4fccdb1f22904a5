"""Which of a process' threads trains, and in which of them a rank waits, as recorders tell it."""

from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.recorder.operations import HostThreads
from stallwatch.model.evidence import CodeFrame, Evidence
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, recorder, world

W4 = world(4)
METRICS = Group("9", "metrics", (0, 1, 2, 3), 9)
PAIRS = (Group("1", "dp0", (0, 1), 1), Group("2", "dp1", (2, 3), 2))
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_REDUCE = (CodeFrame("all_reduce", _TORCH, 3000), CodeFrame("step", "/srv/job/train.py", 10), *SLEEPS[-1:])
IN_SYNC = (
    CodeFrame("synchronize", "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 1083),
    *IN_REDUCE[1:],
)
STARTED = (CodeFrame("run", "/usr/lib/python3.11/threading.py", 982),)


def _beside(count: int) -> tuple[Call, ...]:
    return (Call(METRICS, thread="2", line=31),) * count


def _of_thread(told: Evidence) -> Evidence:
    """What the second thread recorded, with frames of Python's threading below."""
    ranks = []
    for rank in told.ranks:
        looks = tuple(
            replace(
                look,
                operations=tuple(
                    replace(entry, frames=(*entry.frames, *STARTED)) if entry.thread_id == "2" else entry
                    for entry in look.operations
                ),
            )
            for look in rank.recorders
        )
        ranks.append(replace(rank, recorders=looks))
    return replace(told, ranks=tuple(ranks))


def test_a_thread_that_python_started_does_not_train_though_it_recorded_first() -> None:
    calls = (*_beside(2), Call(PAIRS[0]), Call(PAIRS[0]))
    ring = recorder(0, calls, len(calls), backend="gloo")
    started = tuple(
        replace(entry, frames=(*entry.frames, *STARTED)) if entry.thread_id == "2" else entry
        for entry in ring.operations
    )
    lanes = HostThreads([replace(ring, operations=started)])
    assert [lanes.of(entry) for entry in started] == [1, 1, 0, 0]


def test_who_waits_is_not_absent_from_a_group_that_it_never_used_whatever_else_its_threads_do() -> None:
    """Ranks 2 and 3 are in the first barrier; rank 1 waits for rank 0 in their pair, and rank 0 sleeps. A second thread
    of each goes on, and has recorded first."""
    own = {rank: (*_beside(3), *(Call(PAIRS[rank // 2]),) * 4) for rank in range(4)}
    ranks = [
        Rank(0, own[0][:-1], backend="gloo", frames=SLEEPS),
        Rank(1, own[1], len(own[1]) - 1, backend="gloo", frames=IN_REDUCE),
        *(
            Rank(rank, (*own[rank], Call(W4, "barrier")), len(own[rank]), backend="gloo", frames=IN_REDUCE)
            for rank in (2, 3)
        ),
    ]
    for told in (evidence(*ranks), _of_thread(evidence(*ranks))):
        assert judge(told).verdicts[0].culprits == (0,)


def test_a_thread_beside_that_goes_on_before_the_training_thread_has_called_anything_shows_no_motion_of_it() -> None:
    """Rank 0 stands before its first call; its metrics thread, all that its recorder holds, goes on."""
    own = {rank: (*_beside(3), *((Call(W4),) if rank else ())) for rank in range(4)}
    told = _of_thread(
        evidence(
            Rank(0, own[0], backend="gloo", frames=SLEEPS),
            *(Rank(rank, own[rank], len(own[rank]) - 1, backend="gloo", frames=IN_REDUCE) for rank in (1, 2, 3)),
        )
    )
    first, second = told.ranks[0].recorders
    early = replace(first, operations=first.operations[:-1])
    ranks = (replace(told.ranks[0], recorders=(early, second)), *told.ranks[1:])
    verdict = judge(replace(told, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (0,))


def _unthreaded(told: Evidence) -> Evidence:
    """As torch before 2.8 records: no entry names its thread."""
    ranks = []
    for rank in told.ranks:
        looks = (
            replace(look, operations=tuple(replace(o, thread_id=None, thread_name=None) for o in look.operations))
            for look in rank.recorders
        )
        ranks.append(replace(rank, recorders=tuple(looks)))
    return replace(told, ranks=tuple(ranks))


def _early(told: Evidence, missing: int) -> Evidence:
    """Between the looks each rank's metrics thread has made its newest calls."""
    ranks = []
    for rank in told.ranks:
        first, *later = rank.recorders
        ranks.append(
            replace(
                rank, recorders=(replace(first, operations=first.operations[: len(first.operations) - missing]), *later)
            )
        )
    return replace(told, ranks=tuple(ranks))


def test_who_is_late_in_a_thread_beside_does_not_hold_back_a_training_that_stands() -> None:
    """All training threads wait for their GPU, for what a CUDA graph calls, which is in no record; those of metrics go
    on, and rank 0 comes late to each of their calls. Frames alone tell the threads before torch 2.8."""
    steps = (Call(W4, line=10), Call(W4, line=11)) * 10
    ranks = []
    for rank in range(4):
        entries = recorder(rank, (*steps, *_beside(24))).operations
        late_ns = 0 if rank else 70_000_000
        made = tuple(replace(o, created_ns=(o.created_ns or 0) + late_ns) if o.thread_id == "2" else o for o in entries)
        looks = tuple(replace(recorder(rank, steps, look=n), operations=made) for n in (1, 2))
        ranks.append(Rank(rank, dumped=False, frames=IN_SYNC, state="R", wchan=None, extra=looks))
    threaded = _early(_of_thread(evidence(*ranks)), 4)
    for told in (threaded, _unthreaded(threaded)):
        verdict = judge(told).verdicts[0]
        assert (verdict.cause, verdict.culprits) == ("undecided", ()), verdict.summary
