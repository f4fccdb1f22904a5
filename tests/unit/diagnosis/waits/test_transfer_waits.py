"""Whom a transfer waits for: who lacks it, who has issued it behind something else, who may have done it already."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis.activity import read_activity
from stallwatch.diagnosis.analysis import analyze_job
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.diagnosis.waits.graph import Blocker, Graph, Strength
from stallwatch.model.evidence import RankEvidence
from tests.builders.job import (
    IN_RECV,
    SLEEPS,
    Call,
    Group,
    Rank,
    evidence,
    from_any,
    loop,
    recorder,
    transfer,
    world,
)

W4 = world(4)
STEPS = loop(W4, 6)
REDUCES = STEPS[0]


def _graph(*ranks: RankEvidence) -> Graph:
    activities = {rank.rank: read_activity(rank) for rank in ranks}
    case = Case([reduce_rank(rank) for rank in ranks], activities, 4, (), {rank.rank: rank for rank in ranks}, 2)
    return analyze_job(case).graph


def _awaits(graph: Graph, rank: int) -> tuple[Blocker, ...]:
    (point,) = {wait.point for wait in graph.waits if wait.rank == rank}
    return graph.blockers[point]


def _calls(rank: int, *calls: Call, done: int = 0) -> RankEvidence:
    """The loop, of which all has completed, and then `calls`, of which `done` have."""
    return Rank(rank, (*STEPS, *calls), len(STEPS) + done, frames=IN_RECV).evidence()


def test_a_send_behind_a_collective_waits_there_with_its_rank() -> None:
    rest = [_calls(rank, REDUCES) for rank in (2, 3)]
    behind = _graph(_calls(0, transfer(W4, ("recv", 1))), _calls(1, REDUCES, transfer(W4, ("send", 0))), *rest)
    assert _awaits(behind, 0) == (Blocker(1, 0, Strength.QUEUED),)
    first = _graph(_calls(0, transfer(W4, ("recv", 1))), _calls(1, transfer(W4, ("send", 0)), REDUCES), *rest)
    assert _awaits(first, 0) == (), "it stands in that very transfer"
    inside = transfer(W4, ("send", 2), batched=True, closed=False)
    has_sent = _graph(_calls(0, transfer(W4, ("recv", 1))), _calls(1, transfer(W4, ("send", 0)), inside, done=1), *rest)
    assert _awaits(has_sent, 0) == (), "it has sent, whatever it is inside of now"
    lacks = _graph(_calls(0, transfer(W4, ("recv", 1))), _calls(1, REDUCES), *rest)
    assert _awaits(lacks, 0) == (Blocker(1, 0, Strength.RECORDED),)


def _cut(rank: RankEvidence, lost: int) -> RankEvidence:
    """With so many of the first entries of its ring lost."""
    kept = (replace(one, operations=one.operations[lost:]) for one in rank.recorders)
    return replace(rank, recorders=tuple(kept))


@pytest.mark.parametrize(
    ("begins_late", "batch", "strength"),
    [
        (True, True, Strength.SUPPOSED),  # of a batch this transfer may be the one that is done
        (True, False, Strength.RECORDED),
        (False, True, Strength.RECORDED),  # whole rings are counted
    ],
)
def test_of_rings_that_have_lost_their_beginning_a_batch_s_other_end_may_be_done(
    begins_late: bool, batch: bool, strength: Strength
) -> None:
    def ends(peer: int, way: str) -> Call:
        both = (("send", peer), ("recv", peer)) if batch else ((way, peer),)
        return transfer(W4, *both, batched=batch)

    def cut(rank: RankEvidence) -> RankEvidence:
        return _cut(rank, 3) if begins_late else rank

    waits = _calls(0, ends(1, "recv"), ends(1, "recv"), done=1)
    away = Rank(1, (*STEPS, ends(0, "send")), frames=SLEEPS).evidence()
    rest = [Rank(rank, STEPS, frames=SLEEPS).evidence() for rank in (2, 3)]
    assert _awaits(_graph(cut(waits), cut(away), *rest), 0) == (Blocker(1, 0, strength),)


@pytest.mark.parametrize("batch", [(("send", 1), ("recv", 1)), (("recv", 1), ("send", 1))])
def test_of_a_batch_that_waits_twice_for_a_peer_the_surer_wait_is_told(batch: tuple[tuple[str, int], ...]) -> None:
    """Its send stands behind a collective, its receive is nowhere."""
    waits = _calls(0, transfer(W4, *batch, batched=True))
    behind = _calls(1, REDUCES, transfer(W4, ("send", 0)))
    rest = [_calls(rank, REDUCES) for rank in (2, 3)]
    assert _awaits(_graph(waits, behind, *rest), 0) == (Blocker(1, 0, Strength.RECORDED),)


def test_a_send_behind_another_of_the_same_two_waits_there() -> None:
    """The first has come, and the sender stands in it all the same."""
    receives, sends = transfer(W4, ("recv", 1)), transfer(W4, ("send", 0))
    rest = [_calls(rank) for rank in (2, 3)]
    graph = _graph(_calls(0, receives, receives, done=1), _calls(1, sends, sends), *rest)
    assert _awaits(graph, 0) == (Blocker(1, 0, Strength.QUEUED),)
    graph = _graph(_calls(0, receives, receives), _calls(1, sends, sends), *rest)
    assert _awaits(graph, 0) == (), "it stands in the first of both"
    graph = _graph(_calls(0, receives, receives, done=1), _calls(1, sends, sends, done=1), *rest)
    assert _awaits(graph, 0) == (), "both stand in the second"


def test_a_send_behind_one_of_another_group_to_the_same_rank_waits_there() -> None:
    pair = Group("1", "pair", (0, 1), 1)
    rest = [_calls(rank) for rank in (2, 3)]
    behind = _calls(1, transfer(pair, ("send", 0)), transfer(W4, ("send", 0)))
    assert _awaits(_graph(_calls(0, transfer(W4, ("recv", 1))), behind, *rest), 0) == (Blocker(1, 0, Strength.QUEUED),)


def test_a_transfer_to_oneself_in_a_batch_is_awaited_of_nobody() -> None:
    batch = transfer(W4, ("send", 0), ("recv", 0), ("recv", 1), batched=True)
    graph = _graph(_calls(0, batch), *(_calls(rank) for rank in (1, 2, 3)))
    assert _awaits(graph, 0) == (Blocker(1, 0, Strength.RECORDED),)
    assert set(graph.unknown.values()) == {()}


def test_a_receive_from_anybody_may_be_answered_by_all_of_whom_something_is_known() -> None:
    receives = Rank(0, (*STEPS, transfer(W4, ("recv", 1))), len(STEPS), frames=IN_RECV)
    told = from_any(evidence(receives, Rank(1, STEPS), Rank(2, dumped=False), Rank(3, dumped=False, frames=SLEEPS)))
    graph = _graph(*told.ranks)
    assert _awaits(graph, 0) == (Blocker(1, 0, Strength.SUPPOSED), Blocker(3, 0, Strength.SUPPOSED))
    assert list(graph.unknown.values()) == [(2,)]


def test_a_peer_whose_transfer_has_moved_on_is_not_awaited() -> None:
    receives = _calls(0, transfer(W4, ("recv", 1)))
    calls = (*STEPS, transfer(W4, ("send", 0)))
    moves = Rank(1, STEPS, len(STEPS) - 1, looks=1, extra=(recorder(1, calls, len(STEPS), look=2),)).evidence()
    graph = _graph(receives, moves, *(_calls(rank) for rank in (2, 3)))
    assert (graph.moving, _awaits(graph, 0)) == ((1,), ())


def test_rings_of_which_one_is_whole_do_not_count_alike() -> None:
    """Ranks 0 and 1 have one transfer behind them, of which rank 0's ring has lost its end, and rank 0 waits again."""
    receives, sends = transfer(W4, ("recv", 1)), transfer(W4, ("send", 0))
    rest = [_calls(rank) for rank in (2, 3)]
    waits = _cut(_calls(0, receives, receives, done=1), len(STEPS) + 1)
    assert _awaits(_graph(waits, _calls(1, sends, done=1), *rest), 0) == (Blocker(1, 0, Strength.RECORDED),)
    both = _cut(_calls(0, receives, receives, done=1), 3), _cut(_calls(1, sends, sends, done=1), 3)
    assert _awaits(_graph(*both, *rest), 0) == (), "both stand in the second"
