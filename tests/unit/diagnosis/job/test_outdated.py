"""A dump older than the wait is no proof of absence, and nor is a rank of which nothing was read to its end."""

from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.job.dump_age import outdated_ranks
from stallwatch.model.summary import Pending, RankSummary
from tests.builders.job import Rank, evidence, loop, world

STEPS = loop(world(4), 6)


def _pending(created_ns: int, *, seen_before: bool | None = True) -> tuple[Pending, ...]:
    return (Pending(record=1, lane=0, stream=0, call=0, seq=1, created_ns=created_ns, seen_before=seen_before),)


def test_a_dump_is_outdated_where_it_was_taken_before_the_wait_began() -> None:
    early = RankSummary(0, 1, ("gloo",), captured_at_ns=100)
    waits = RankSummary(1, 1, ("gloo",), pending=_pending(150), captured_at_ns=900)
    assert outdated_ranks([early, waits]) == {0}
    assert outdated_ranks([early, replace(waits, pending=_pending(50))]) == frozenset()


def test_dumps_of_one_moment_are_never_outdated() -> None:
    """A daemon notes one time for all of them, and a job that moves goes on calling."""
    ranks = [RankSummary(rank, 1, ("gloo",), pending=_pending(150), captured_at_ns=100) for rank in range(3)]
    assert outdated_ranks(ranks) == frozenset()


def test_a_dump_of_an_earlier_look_is_outdated_where_the_wait_was_not_there_yet() -> None:
    early = RankSummary(0, 1, ("gloo",))
    waits = RankSummary(1, 2, ("gloo",), pending=_pending(150, seen_before=False))
    assert outdated_ranks([early, waits]) == {0}
    assert outdated_ranks([early, replace(waits, pending=_pending(150))]) == frozenset()


def test_a_rank_whose_dump_is_outdated_is_not_accused() -> None:
    """It stands in no line of its own that a stack would show: it may have entered since."""
    told = evidence(*_waiting(), Rank(3, STEPS, backend="gloo"))
    *waiting, absent = (replace(rank, captured_at_ns=10**19) for rank in told.ranks)
    assert judge(replace(told, ranks=(*waiting, absent))).verdicts[0].culprits == (3,)
    assert judge(replace(told, ranks=(*waiting, replace(absent, captured_at_ns=1)))).verdicts[0].culprits == ()


def test_without_a_whole_dump_and_a_stack_a_rank_is_accused_as_possible_at_most() -> None:
    told = evidence(*_waiting(), Rank(3, STEPS, backend="gloo"))
    *waiting, last = told.ranks
    cut = replace(last, recorders=tuple(replace(recorder, cut_short=True) for recorder in last.recorders))
    assert judge(replace(told, ranks=(*waiting, cut))).verdicts[0].confidence == "possible"


def _waiting() -> list[Rank]:
    return [Rank(rank, (*STEPS, STEPS[0]), len(STEPS), backend="gloo") for rank in range(3)]
