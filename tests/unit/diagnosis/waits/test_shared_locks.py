"""A rank at a lock that another process of its node may hold waits for that one: it did not stay away by itself."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, RankEvidence
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, Rank, evidence, loop, world

STEPS = loop(world(4), 6)
_AT_LINE = (CodeFrame("load", "/srv/job/train.py", 30), SLEEPS[-1])


def _waits(rank: int) -> RankEvidence:
    return Rank(rank, (*STEPS, STEPS[0]), len(STEPS), wchan="futex_do_wait").evidence()


def _at_lock(
    rank: int, wchan: str = "__do_semtimedop", holder: int | None = None, host: str | None = None
) -> RankEvidence:
    stands = Rank(rank, STEPS, frames=_AT_LINE, wchan=wchan).evidence()
    looks = tuple(replace(look, lock_holder_pid=holder) for look in stands.processes)
    return replace(stands, processes=looks, host=host or stands.host)


def _reads(rank: int) -> RankEvidence:
    return Rank(rank, STEPS, frames=_AT_LINE, wchan="folio_wait_bit").evidence()


def _judged(*ranks: RankEvidence) -> Verdict:
    return judge(replace(evidence(world_size=4), ranks=ranks)).verdicts[0]


def _pid(rank: RankEvidence) -> int:
    assert rank.pid is not None
    return rank.pid


@pytest.mark.parametrize("wchan", ["__do_semtimedop", "locks_lock_inode_wait"])
def test_who_waits_at_a_lock_is_a_victim_of_the_one_of_its_node_that_is_elsewhere(wchan: str) -> None:
    verdict = _judged(_waits(0), _reads(1), _at_lock(2, wchan), _at_lock(3, wchan))
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))
    assert verdict.ends_by_itself == "storage", "what ends is what the holder does"
    assert verdict.confidence != "certain", "nothing tells who holds it"
    (told,) = [fact.fact for fact in verdict.because if "may hold" in fact.fact]
    assert told.startswith("ranks 2-3: ")
    assert "rank 1" in told


_SYNCHRONIZE = "/usr/lib/python3.11/multiprocessing/synchronize.py"
_POOL = (CodeFrame("wait", "/usr/lib/python3.11/threading.py", 327),
         CodeFrame("ApplyResult.get", "/usr/lib/python3.11/multiprocessing/pool.py", 768))  # fmt: skip
_EVENT = (CodeFrame("Condition.wait", _SYNCHRONIZE, 200), CodeFrame("Event.wait", _SYNCHRONIZE, 300))


@pytest.mark.parametrize("inner", [_POOL, _EVENT])
def test_what_children_of_its_own_would_give_back_or_set_no_other_rank_holds(inner: tuple[CodeFrame, ...]) -> None:
    waits = Rank(2, STEPS, frames=(*inner, *_AT_LINE), wchan="futex_do_wait").evidence()
    verdict = _judged(_waits(0), _reads(1), waits, _waits(3))
    assert verdict.culprits == (1, 2)
    assert not any("may hold" in fact.fact for fact in verdict.because)


@pytest.mark.parametrize("name", ["SemLock.acquire", "Lock.__enter__", "Semaphore.acquire"])
def test_a_lock_of_multiprocessing_may_be_another_rank_s(name: str) -> None:
    frames = (CodeFrame(name, _SYNCHRONIZE, 90), *_AT_LINE)
    waits = Rank(2, STEPS, frames=frames, wchan="futex_do_wait").evidence()
    verdict = _judged(_waits(0), _reads(1), waits, _waits(3))
    assert verdict.culprits == (1,)
    assert any("which rank 1 of the same node may hold" in fact.fact for fact in verdict.because)


def test_who_holds_a_lock_is_the_cause_wherever_the_other_waits_for_it() -> None:
    """A checkpoint's code that locks its folder: its storage is not what keeps it."""
    saves = (CodeFrame("_save", "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", 800), *_AT_LINE)
    reads = _reads(1)
    waits = Rank(2, STEPS, frames=(CodeFrame("lock", "/srv/job/folder.py", 7), *saves), wchan="locks_lock_inode_wait")
    told = waits.evidence()
    told = replace(told, processes=tuple(replace(look, lock_holder_pid=_pid(reads)) for look in told.processes))
    assert _judged(_waits(0), reads, told, _waits(3)).culprits == (1,)


def test_nobody_of_another_node_holds_it() -> None:
    assert _judged(_waits(0), _reads(1), _at_lock(2, host="b"), _waits(3)).culprits == (1, 2)


def test_where_all_stand_at_locks_all_are_named() -> None:
    assert _judged(_waits(0), _at_lock(1), _at_lock(2), _waits(3)).culprits == (1, 2)


def test_the_kernel_tells_who_holds_a_lock_on_a_file() -> None:
    reads, sleeps = _reads(1), Rank(3, STEPS, frames=SLEEPS, wchan="hrtimer_nanosleep").evidence()
    verdict = _judged(_waits(0), reads, _at_lock(2, "locks_lock_inode_wait", _pid(reads)), sleeps)
    assert verdict.culprits == (1, 3)
    assert any("which rank 1 holds" in fact.fact for fact in verdict.because)


def test_a_lock_that_a_program_beside_the_job_holds_makes_nobody_else_the_cause() -> None:
    verdict = _judged(_waits(0), _reads(1), _at_lock(2, "locks_lock_inode_wait", 999999), _waits(3))
    assert verdict.culprits == (1, 2)
    assert any("process 999999 holds" in fact.fact for fact in verdict.because)


@pytest.mark.parametrize("holder", [None, 999999])
def test_who_waits_for_a_lock_of_the_kernel_is_not_told_to_use_one(holder: int | None) -> None:
    """Of `flock` people were told that a lock of flock would not have been kept by who has died."""
    steps = _judged(_waits(0), _waits(1), _at_lock(2, "locks_lock_inode_wait", holder), _waits(3)).next_steps
    assert any("flock or fcntl" in step for step in steps) == (holder is None)
    assert any("forked with the file open" in step for step in steps) == (holder is not None)


def test_a_lock_that_no_child_inherits_is_not_said_to_be_held_on_by_one() -> None:
    """fcntl(2), lockf(3): the kernel tells its holder as well, and it ends with that."""
    steps = _judged(_waits(0), _waits(1), _at_lock(2, "fcntl_setlk", 999999), _waits(3)).next_steps
    assert "999999" in steps[0]
    assert not any("forked" in step for step in steps)


def test_holders_in_a_circle_are_all_named() -> None:
    first, second = _at_lock(1, "locks_lock_inode_wait"), _at_lock(2, "locks_lock_inode_wait")

    def holding(rank: RankEvidence, of: RankEvidence) -> RankEvidence:
        return replace(rank, processes=tuple(replace(one, lock_holder_pid=_pid(of)) for one in rank.processes))

    assert _judged(_waits(0), holding(first, second), holding(second, first), _waits(3)).culprits == (1, 2)


def test_a_chain_of_holders_ends_at_the_one_that_does_something_else() -> None:
    first = _reads(1)
    second = _at_lock(2, "locks_lock_inode_wait", _pid(first))
    third = _at_lock(3, "locks_lock_inode_wait", _pid(second))
    assert _judged(_waits(0), first, second, third).culprits == (1,)


def test_one_that_waits_in_the_collective_may_hold_it() -> None:
    waits = _waits(0)
    verdict = _judged(waits, _at_lock(1, "locks_lock_inode_wait", _pid(waits)), _waits(2), _waits(3))
    assert verdict.culprits == (1,)
    assert any("which rank 0 holds" in fact.fact for fact in verdict.because)
    assert str(_pid(waits)) in verdict.next_steps[0]


def test_a_program_that_holds_the_lock_may_give_it_back_and_a_rank_that_waits_does_not() -> None:
    """A cache that another job builds; a helper that has the lock by its rank's own file."""
    at_lock = _at_lock(1, "locks_lock_inode_wait", 999999)
    others = (_waits(0), _waits(2), _waits(3))
    for holder in (999999, _pid(at_lock)):
        verdict = _judged(*others, _at_lock(1, "locks_lock_inode_wait", holder))
        assert (verdict.culprits, verdict.ends_by_itself, verdict.confidence) == ((1,), "lock", "likely")
    for known in (None, _pid(others[0])):
        assert _judged(*others, _at_lock(1, "locks_lock_inode_wait", known)).ends_by_itself is None
