"""Who differs where no majority tells: what decides it, and where nothing does."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.diagnosis.calls.align import Divergence, find_divergences
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.recorder.reduce import reduce_rank
from stallwatch.model.evidence import RankEvidence, Recorder
from tests.builders.job import Call, Group, Rank, evidence, loop, transfer, world

PAIR = world(2)
STEPS = loop(PAIR, 4)
END = Call(PAIR, "barrier", line=80)
EXTRA = Call(PAIR, elements=7, line=44)  # of the size of a step's second call, with which it pairs


def divergences(ranks: Sequence[RankEvidence]) -> tuple[Divergence, ...]:
    return find_divergences(Case([reduce_rank(rank) for rank in ranks], {}, len(ranks)))


def divergence(*ranks: Rank, lines: bool = True) -> Divergence:
    """The only one. Without `lines` the recorder was told to note no stacks."""
    told = [rank.evidence() for rank in ranks]
    if not lines:
        told = [replace(rank, recorders=tuple(map(_without_lines, rank.recorders))) for rank in told]
    (found,) = divergences(told)
    return found


def _without_lines(recorder: Recorder) -> Recorder:
    return replace(recorder, operations=tuple(replace(entry, frames=()) for entry in recorder.operations))


def test_a_call_from_a_line_of_its_own_that_paired_decides() -> None:
    usual, odd = Rank(0, (*STEPS, END), 8), Rank(1, (*STEPS[:-1], EXTRA, STEPS[-1]), 8)
    found = divergence(usual, odd)
    assert (found.decided_by, found.culprits, found.seq) == ("slip", (1,), 9)


def test_where_no_lines_are_known_what_has_followed_before_decides() -> None:
    """After a call of 7 elements one of 500 always came; which line made either nobody noted."""
    usual, odd = Rank(0, (*STEPS, STEPS[0]), 8), Rank(1, (*STEPS, EXTRA), 8)
    assert divergence(usual, odd).decided_by == "site"
    found = divergence(usual, odd, lines=False)
    assert (found.decided_by, found.culprits) == ("history", (1,))


def test_a_line_that_always_called_something_else_decides() -> None:
    """Once is no habit: a line may make several calls."""
    usual, odd = Call(PAIR, elements=500), Call(PAIR, "broadcast", elements=500)  # of line 10
    for past, decided in ((STEPS[:4], "line"), (STEPS[:2], "start")):
        found = divergence(Rank(0, (*past, usual), len(past)), Rank(1, (*past, odd), len(past)))
        assert (found.decided_by, found.culprits) == (decided, (1,)), past


def test_a_size_that_was_never_seen_is_the_odd_one_where_nothing_has_repeated_yet() -> None:
    """Of two operations that say nothing of each other none is: a new one may be the program's next part."""
    past = STEPS[:2]
    news = ((Call(PAIR, elements=9), (1,)), (Call(PAIR, "broadcast", 9), ()), (END, ()))
    for new, culprits in news:
        found = divergence(Rank(0, (*past, past[1]), 2), Rank(1, (*past, new), 2), lines=False)
        assert found.culprits == culprits, new


@pytest.mark.parametrize("lines", [False, True])
def test_who_calls_once_more_what_was_the_last_of_each_round_has_not_been_left_at_a_barrier(lines: bool) -> None:
    """It went round before, and never so: one of its calls may be one too many, or a last one that its peer leaves
    out."""
    for now, culprits in ((STEPS[1], ()), (STEPS[0], (0,))):
        found = divergence(Rank(0, (*STEPS, END), 8), Rank(1, (*STEPS, now), 8), lines=lines)
        assert found.culprits == culprits, now


def test_half_of_a_group_that_made_a_call_of_its_own_is_named_where_all_lines_are_compared() -> None:
    """It paired, and they stand one call off. Number by number that is compared in groups of 16 at most: among more
    their own order tells."""
    for members in (16, 18):
        group = world(members)
        steps, end, extra = loop(group, 4), Call(group, "barrier", line=80), Call(group, elements=7, line=44)
        odd = (*steps[:-1], extra, steps[-1])
        ranks = [Rank(rank, odd if rank % 2 else (*steps, end), 8) for rank in range(members)]
        assert judge(evidence(*ranks)).verdicts[0].culprits == tuple(range(1, members, 2))


@pytest.mark.parametrize("new", ["all_reduce", "broadcast"])
def test_at_the_end_of_a_first_round_of_calls_a_line_that_is_new_tells_nobody(new: str) -> None:
    """Whoever is back at the first line may have left out what its peer calls there; from the second round on the
    calls before have been followed by something."""
    first, second, other = (Call(PAIR, elements=n, line=n) for n in (20, 30, 40))
    odd = Call(PAIR, new, elements=70, line=50)
    for back, past, culprits in (
        (first, (first, second, other), ()),
        (second, (first, second, other, first), (1,)),
    ):
        found = divergence(Rank(0, (*past, back), len(past)), Rank(1, (*past, odd), len(past)))
        assert found.culprits == culprits, past


TP = [Group(str(1 + n), f"tp{n}", (2 * n, 2 * n + 1), 1 + n) for n in range(2)]


def _pairs(*calls: Sequence[str]) -> list[Rank]:
    """Two pairs of ranks, the first of which stands in its last calls."""
    made = [tuple(Call(TP[rank // 2], name) for name in names) for rank, names in enumerate(calls)]
    return [Rank(rank, own, len(own) - (rank < 2)) for rank, own in enumerate(made)]


def test_a_pair_that_made_the_same_calls_is_a_witness() -> None:
    past = ["all_gather", "broadcast"]
    found = divergence(*_pairs([*past, "all_reduce"], [*past, "gather"], *[[*past, "all_reduce"]] * 2))
    assert (found.decided_by, found.culprits) == ("sisters", (1,))


def test_a_pair_that_has_not_come_there_or_went_another_way_is_no_witness() -> None:
    past = ["all_gather", "broadcast"]
    parted = ([*past, "all_reduce"], [*past, "gather"])
    for beside in (past, ["all_gather", "all_gather", "all_reduce"]):
        found = divergence(*_pairs(*parted, beside, beside))
        assert (found.decided_by, found.culprits) == ("nothing", ()), beside


def test_a_pair_that_called_the_same_from_another_line_is_no_witness() -> None:
    """Rank 1's call from a line of its own is, by chance, of the size of what the other pair calls there."""
    past = ["all_gather", "broadcast"]
    ranks = _pairs([*past, "broadcast"], past, *[[*past, "all_reduce"]] * 2)
    for line, decided, culprits in ((10, "sisters", (0,)), (44, "site", (1,))):
        own = (*ranks[1].calls, Call(TP[0], "all_reduce", line=line))
        found = divergence(ranks[0], Rank(1, own, 2), *ranks[2:])
        assert (found.decided_by, found.culprits) == (decided, culprits), line


@pytest.mark.parametrize(("lost", "decided"), [(0, ("sisters", (0,))), (1, ("history", (1,)))])
def test_a_pair_of_another_stage_whose_ring_has_lost_its_beginning_is_no_witness(
    lost: int, decided: tuple[str, tuple[int, ...]]
) -> None:
    """Between the first microbatch and the last two stages go alike for long: how they began tells them apart."""
    stages = [Group(str(5 + n), f"pp{n}", (n, 2 + n), 5 + n) for n in range(2)]
    told = []
    for rank in range(4):
        ahead, back = Call(TP[rank // 2], elements=8), Call(TP[rank // 2], elements=5)
        moved = transfer(stages[rank % 2], ("recv", 1) if rank < 2 else ("send", 0))
        calls = (ahead, moved, back, ahead, back, ahead if rank == 0 else back)
        told.append(Rank(rank, calls, 5 if rank < 2 else 6).evidence())
    for rank in (2, 3):
        rings = tuple(_without_first(recorder, lost) for recorder in told[rank].recorders)
        told[rank] = replace(told[rank], recorders=rings)
    (found,) = divergences(told)
    assert (found.decided_by, found.culprits) == decided


@pytest.mark.parametrize(("lost", "decided_by"), [(0, "site"), (7, "nothing")])
def test_of_the_little_that_a_ring_has_kept_no_line_is_new(lost: int, decided_by: str) -> None:
    """All of the eight calls before are of line 13, or the first seven are lost: one of these may be of line 10."""
    again, other = Call(PAIR, "all_gather", 512, line=13), Call(PAIR, "broadcast", 2048, line=10)
    told = [Rank(rank, (*[again] * 8, now), 8).evidence() for rank, now in enumerate((again, other))]
    rings = [
        replace(rank, recorders=tuple(_without_first(recorder, lost) for recorder in rank.recorders)) for rank in told
    ]
    (found,) = divergences(rings)
    assert (found.decided_by, found.culprits) == (decided_by, (1,) if not lost else ())


def _without_first(recorder: Recorder, lost: int) -> Recorder:
    return replace(recorder, operations=recorder.operations[lost:])
