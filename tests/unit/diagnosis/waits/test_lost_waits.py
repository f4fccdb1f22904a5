"""Ranks whose own wait is in no dump: their stack was not read, their file broke off, or it is older than the wait."""

from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.analysis import analyze_job
from stallwatch.diagnosis.calls.sequences import find_departures
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.transfer_ends import named_ends
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import CodeFrame, GroupStatus, RankEvidence
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, from_any, loop, transfer, world

W4 = world(4)
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_REDUCE = (CodeFrame("all_reduce", _TORCH, 3000), CodeFrame("step", "/srv/job/train.py", 10), *SLEEPS[-1:])
PAIRS = (Group("1", "dp0", (0, 1), 1), Group("2", "dp1", (2, 3), 2))


def _steps(rank: int) -> tuple[Call, ...]:
    return (Call(PAIRS[rank // 2], line=20), Call(W4)) * 4


def _waits(rank: int, calls: int) -> Rank:
    """A rank of gloo's, inside the last of so many calls."""
    return Rank(rank, _steps(rank)[:calls], calls - 1, backend="gloo", frames=IN_REDUCE)


def test_beside_one_that_is_seen_elsewhere_a_rank_of_which_there_is_only_a_dump_may_wait_for_it() -> None:
    """Rank 1 waits for rank 0, rank 3 for rank 2, which reads; gloo records no receive, and rank 0 may stand in one."""
    told = evidence(
        Rank(0, _steps(0)[:4], backend="gloo", frames=()),
        _waits(1, 5),
        Rank(2, _steps(2)[:4], backend="gloo", frames=SLEEPS),
        _waits(3, 5),
    )
    assert judge(told).verdicts[0].culprits == (2,)


def _cut(rank: int, kept: int, completed: int) -> RankEvidence:
    """A dump that broke off after so many entries; pg_status, before them, knows of one more in the rank's pair."""
    whole = Rank(rank, _steps(rank)[:kept], backend="gloo", frames=()).evidence()
    pair = PAIRS[rank // 2].pg_id
    last = sum(call.group.pg_id == pair for call in _steps(rank)[:kept])
    status = (GroupStatus(pair, last + 1, -1, last + completed), GroupStatus(0, kept - last, -1, kept - last))
    recorders = tuple(replace(recorder, cut_short=True, status=status) for recorder in whole.recorders)
    return replace(whole, recorders=recorders)


def test_who_waits_in_what_its_file_has_lost_is_not_absent() -> None:
    """pg_status says of rank 0 that a call of its pair is not completed: it waits there, for rank 1, which sleeps."""
    told = evidence(Rank(1, _steps(1)[:2], backend="gloo", frames=SLEEPS), _waits(2, 4), _waits(3, 4), world_size=4)
    assert judge(replace(told, ranks=(_cut(0, 2, 0), *told.ranks))).verdicts[0].culprits == (1,)
    # Completed as well, it says nothing of where the rank is.
    assert [reduce_rank(_cut(0, 2, completed)).outran for completed in (0, 1)] == [True, False]


def test_beside_one_in_a_receive_who_waits_in_what_its_file_has_lost_is_not_absent_either() -> None:
    """Rank 1 may wait for a message of rank 0, and rank 0 for one of rank 1: nothing tells which of them began it."""
    receives = Rank(1, _steps(1)[:2], backend="gloo", frames=IN_RECV, wchan="futex_do_wait")
    told = evidence(receives, _waits(2, 4), _waits(3, 4), world_size=4)
    lost = replace(_cut(0, 2, 0), processes=())
    verdict = judge(replace(told, ranks=(lost, *told.ranks))).verdicts[0]
    assert verdict.culprits == (), verdict.summary


def test_an_old_dump_does_not_hide_that_its_rank_stands_in_a_collective_now() -> None:
    """All wait for rank 1, which receives; rank 3 did not answer the second time, and stands where 2 does."""
    whole = _waits(3, 4).evidence()
    first = replace(whole.recorders[0], operations=whole.recorders[0].operations[:2])
    pending = whole.recorders[0].operations[3].created_ns
    assert pending is not None
    old = replace(whole, recorders=(first,), captured_at_ns=pending - 1)
    told = evidence(_waits(0, 3), Rank(1, _steps(1)[:2], backend="gloo", frames=IN_RECV), _waits(2, 4), world_size=4)
    verdict = judge(replace(told, ranks=(*told.ranks, old))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", ())


def test_two_in_receives_for_whom_others_only_may_wait_are_not_the_two_ends_of_one_message() -> None:
    """Rank 2 is the only one that was ever seen in its group: whoever is in no other may be its member."""
    alone = Group("2", "dp1", (2,), 2)
    both = [Rank(rank, (), backend="gloo", frames=IN_RECV) for rank in (0, 1)]
    waits = Rank(2, (Call(alone),), 0, backend="gloo", frames=IN_REDUCE, members_known=False)
    assert judge(evidence(waits, *both, world_size=3)).verdicts[0].culprits == ()


RING = world(2)


def _ring(rank: int, *, lacks: bool) -> tuple[Call, ...]:
    """Two steps of two micro batches, each a reduction and a ring exchange; the last exchange may lack its receive."""
    peer = 1 - rank
    micro = (Call(RING, line=10), transfer(RING, ("send", peer), ("recv", peer), batched=True, line=40))
    step = (*micro, *micro, Call(RING, line=60), Call(RING, elements=1, line=90))
    short = (*micro, micro[0], transfer(RING, ("send", peer), batched=True, line=40), *step[-2:])
    return (*step, *(short if lacks else step))


def test_a_habit_that_was_broken_is_not_found_broken_in_the_steps_before() -> None:
    """Seen from its end, the first step's way from the last receive to line 60 was gone only once as well."""
    ranks = [reduce_rank(Rank(r, _ring(r, lacks=r == 1), len(_ring(r, lacks=False)) - 3).evidence()) for r in (0, 1)]
    case = Case(ranks, {}, 2)
    found = find_departures(case, (0, 1))
    assert [(d.rank, [call.operation.split()[0] for call in d.expected]) for d in found] == [(1, ["recv"])]


def test_transfers_that_name_ranks_of_the_job_do_so_for_the_first_member_too() -> None:
    """Ranks 0, 2, 4, 6: of "recv 0<-2" both readings fit rank 0; rank 2 names itself 2, where its place is 1."""
    members = (0, 2, 4, 6)
    places = {member: place for place, member in enumerate(members)}
    assert named_ends(members, places, 0, (2, 0), {0}, by_rank=True) == (2, 0)
    assert named_ends(members, places, 0, (2, 0), {0}, by_rank=False) == (4, 0)
    assert named_ends(members, places, 2, (4, 2), {2}, by_rank=False) == (4, 2)
    assert named_ends(members, places, 2, (2, 1), {1}, by_rank=False) == (4, 2)


def test_a_receive_from_anybody_does_not_accuse_one_of_whom_nothing_is_known() -> None:
    group = world(3)
    steps = tuple(transfer(group, ("recv", 1), line=33) for _ in range(4))
    waits = Rank(0, steps, 3, frames=IN_RECV)
    sleeps = Rank(2, loop(group, 2), frames=SLEEPS)
    told = from_any(evidence(waits, Rank(1).lost(), sleeps))
    blank = RankEvidence(rank=1, host=None, pid=None)
    verdict = judge(replace(told, ranks=(told.ranks[0], blank, told.ranks[2]))).verdicts[0]
    assert verdict.culprits == (2,), verdict.summary


def test_who_waits_in_what_another_group_of_its_kind_has_ended_is_in_no_order_of_its_own() -> None:
    """In the first step rank 2 leaves out what its pair reduces, and all but its partner wait in the world's call."""
    ends = Group("1", "embedding0", (0, 2), 1), Group("2", "embedding1", (1, 3), 1)
    world_call = Call(world(4), elements=1, line=120)

    def waits(rank: int, *before: Call) -> Rank:
        return Rank(rank, (*before, world_call), len(before), backend="gloo")

    partner = Rank(0, (Call(ends[0], line=99),), 0, backend="gloo")
    others = [waits(2), *(waits(rank, Call(ends[1], line=99)) for rank in (1, 3))]
    assert 0 not in judge(evidence(partner, *others)).verdicts[0].culprits


def test_of_whose_first_waits_the_rings_are_lost_nobody_is_in_a_circle() -> None:
    """Both rings begin with a receive behind which the send stands; pg_status says that a call before has not ended."""
    pair, start = world(2), Group("9", "start", (0, 1, 2), 9)

    def stands(rank: int, lost: int) -> RankEvidence:
        past = Call(start), transfer(pair, ("send", 1 - rank)), transfer(pair, ("recv", 1 - rank))
        calls = (*past, transfer(pair, ("recv", 1 - rank)), transfer(pair, ("send", 1 - rank)))
        whole = Rank(rank, calls, 3).evidence()
        status = (GroupStatus(9, 1, -1, 0 if lost else 1), GroupStatus(pair.pg_id, 4, -1, 2))
        cut = (replace(each, operations=each.operations[lost:], status=status) for each in whole.recorders)
        return replace(whole, recorders=tuple(cut))

    ended = Rank(2, (Call(start), Call(start)), 1).evidence()
    told = evidence(Rank(0), Rank(1), Rank(2))
    for lost, cause in ((0, "p2p_unmatched"), (3, "undecided")):
        verdict = judge(replace(told, ranks=(stands(0, lost), stands(1, lost), ended))).verdicts[0]
        assert verdict.cause == cause, (lost, verdict.summary)


def test_who_waits_in_a_later_call_of_the_group_has_entered_the_earlier_one_that_its_ring_has_lost() -> None:
    """The first of rank 1's ring is the fifth call of its pair: nothing shows that rank 0's fourth waits for it."""

    told = [Rank(rank, (Call(PAIRS[0], line=20),) * 7, done).evidence() for rank, done in ((0, 3), (1, 4))]
    cut = [replace(one, streams=(replace(one.streams[0], completed=0),)) for one in map(reduce_rank, told)]
    assert [summary.pending[0].seq for summary in cut] == [4, 5]
    roots = analyze_job(Case(cut, {}, 2, (), {rank.rank: rank for rank in told}, 2)).roots
    assert (roots.cycles, roots.absent) == ((), ())
