"""Verdicts about calls that do not fit each other."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Recorder
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, loop, world

W4 = world(4)
STEPS = loop(W4, 5)


def _all_but(odd: int, usual: Call, other: Call) -> list[Rank]:
    return [Rank(r, (*STEPS, other if r == odd else usual), len(STEPS)) for r in range(4)]


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (Call(W4, "all_gather", 500), "op"),
        (Call(W4, elements=999), "size"),
        (Call(W4, elements=500, dtype="BFloat16"), "dtype"),
    ],
)
def test_the_one_that_differs_is_named_with_what_differs(other: Call, kind: str) -> None:
    verdict = judge(evidence(*_all_but(1, STEPS[0], other))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (1,))
    assert verdict.mismatch is not None
    assert verdict.mismatch.kind == kind


@pytest.mark.parametrize("odd", range(4))
def test_the_wrong_shape_is_named_whichever_rank_is_read_first(odd: int) -> None:
    verdict = judge(evidence(*_all_but(odd, STEPS[0], Call(W4, elements=999)))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (odd,))


def test_a_barrier_at_the_end_against_the_loop_is_exhausted_data() -> None:
    verdict = judge(evidence(*_all_but(1, STEPS[0], Call(W4, "barrier", line=80)))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("data_exhausted", (1,))


def test_each_rank_is_said_to_wait_in_what_it_called_itself() -> None:
    """Under one number of a group ranks stand in different operations: that is what a mismatch is."""
    verdict = judge(evidence(*_all_but(2, STEPS[0], Call(W4, "all_gather", 500)))).verdicts[0]
    facts = [fact.fact for fact in verdict.because]
    assert any(fact.startswith(f"ranks 0-1,3 wait in all_reduce #{verdict.seq}") for fact in facts), facts
    assert any(fact.startswith(f"rank 2 waits in all_gather #{verdict.seq}") for fact in facts), facts


@pytest.mark.parametrize("name", ["all_to_all", "alltoall_base", "gather", "scatter"])
def test_sizes_that_differ_in_health_are_no_mismatch(name: str) -> None:
    ranks = [Rank(r, (*STEPS, Call(W4, name, 100 + r)), len(STEPS) + 1, frames=SLEEPS) for r in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].cause == "undecided"


def test_uneven_inputs_of_an_all_gather_are_no_mismatch() -> None:
    ranks = [Rank(r, (*STEPS, Call(W4, "all_gather", 100 + r, outputs=406)), len(STEPS) + 1) for r in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].cause == "undecided"


def test_of_two_that_differ_the_earlier_steps_tell_which() -> None:
    pair = world(2)
    steps = loop(pair, 5)
    ranks = [Rank(0, (*steps, steps[0]), len(steps)), Rank(1, (*steps, steps[1]), len(steps))]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (1,))


def test_of_two_that_differ_in_the_first_call_nothing_tells_and_it_says_so() -> None:
    pair = world(2)
    ranks = [Rank(0, (Call(pair),), 0), Rank(1, (Call(pair, "broadcast"),), 0)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.cause == "collective_mismatch"
    assert verdict.confidence == "possible"
    assert any("nothing tells" in fact.fact for fact in verdict.because)


def test_the_first_divergence_counts_not_the_last() -> None:
    """Rank 1 skipped a call long ago; everything after is paired wrongly, and the operations alternate."""
    calls = tuple(
        Call(W4, name, line=line) for _ in range(6) for name, line in (("all_gather", 10), ("all_reduce", 11))
    )
    skipped = (*calls[:5], *calls[6:])
    ranks = [Rank(r, calls, 10) for r in (0, 2, 3)]
    verdict = judge(evidence(ranks[0], Rank(1, skipped, 10), ranks[1], ranks[2])).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.seq) == ("collective_mismatch", (1,), 6)


def test_sister_groups_tell_which_of_two_is_right() -> None:
    groups = [Group("1", "tp0", (0, 1), 1), Group("2", "tp1", (2, 3), 1)]
    right, wrong = "all_reduce", "reduce_scatter"
    ranks = [Rank(r, (Call(groups[r // 2], wrong if r == 1 else right),), 1 if r > 1 else 0) for r in range(4)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (1,))


def test_the_line_of_code_tells_which_of_two_is_right() -> None:
    """Line 10 had always called all_reduce; the order of calls says nothing, it has not come round before."""
    pair = world(2)
    past = (Call(pair, line=10), Call(pair, "all_gather", line=11))
    ranks = [Rank(0, (*past, Call(pair, line=10)), 2), Rank(1, (*past, Call(pair, "broadcast", line=10)), 2)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (1,))


def test_one_call_too_many_that_paired_is_blamed_not_the_difference_that_shows_later() -> None:
    """Rank 1's extra call has the size of the next one, so that pairs; rank 0 then comes to the end before it."""
    pair = world(2)
    steps = loop(pair, 4)
    end, extra = Call(pair, "barrier", line=80), Call(pair, elements=7, line=44)
    ranks = [Rank(0, (*steps, end), len(steps)), Rank(1, (*steps[:-1], extra, steps[-1]), len(steps))]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (1,), "likely")
    assert verdict.mismatch is not None
    assert (verdict.mismatch.kind, verdict.mismatch.found) == ("count", "one all_reduce more")


def test_what_a_dump_that_broke_off_has_lost_is_not_left_out_by_its_rank() -> None:
    """All ranks stand in one call of theirs, and rank 0 made one that the others did not: by all that is left of it."""
    steps = tuple(Call(W4, "alltoall_base", line=line) for _ in range(4) for line in (10, 11))
    extra = Call(W4, "alltoall_base", 3, line=44)
    odd = Rank(0, (*steps, extra, steps[0]), len(steps) + 1).evidence()
    told = evidence(*(Rank(r, (*steps, *steps[:2]), len(steps) + 1) for r in (1, 2, 3)), world_size=4)
    for cut, culprits in ((False, (0,)), (True, ())):
        dumps = tuple(replace(recorder, cut_short=cut) for recorder in odd.recorders)
        ranks = (replace(odd, recorders=dumps), *told.ranks)
        assert judge(replace(told, ranks=ranks)).verdicts[0].culprits == culprits


def test_calls_from_other_lines_on_both_sides_are_a_new_phase_of_the_program() -> None:
    """Both leave their habits under one number: then only the difference itself counts."""
    pair = world(2)
    steps = loop(pair, 4)
    mine, theirs = Call(pair, elements=3, line=60), Call(pair, elements=3, line=61)
    ranks = [
        Rank(0, (*steps, mine, Call(pair, "broadcast", line=62)), len(steps) + 1),
        Rank(1, (*steps, theirs, steps[0]), len(steps) + 1),
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.mismatch is not None
    assert verdict.mismatch.kind == "op"


def test_an_extra_call_among_sizes_that_may_differ_is_told_though_all_stand_in_calls_that_look_alike() -> None:
    steps = tuple(Call(W4, "alltoall_base", line=line) for _ in range(4) for line in (10, 11))
    extra = Call(W4, "alltoall_base", 3, line=44)
    ranks = [Rank(r, (*steps, *steps[:2]), len(steps) + 1) for r in (1, 2, 3)]
    verdict = judge(evidence(Rank(0, (*steps, extra, steps[0]), len(steps) + 1), *ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (0,), "likely")


def test_a_call_left_out_among_sizes_that_may_differ_is_told_though_both_stand_in_calls_that_look_alike() -> None:
    """Pairs in which no majority tells; the other pairs make the same calls. One member left a call out: the next,
    in another group, ended, and it stands under the number of what it left out in a call from another line."""
    pairs = [Group(str(1 + n), f"tp{n}", (2 * n, 2 * n + 1), 1 + n) for n in range(3)]
    rows = [Group(str(4 + n), f"dp{n}", (n, n + 2, n + 4), 4 + n) for n in range(2)]

    def step(rank: int) -> tuple[Call, ...]:
        first, second = (Call(pairs[rank // 2], "alltoall_base", line=line) for line in (10, 66))
        return first, Call(rows[rank % 2], elements=256, line=13), second

    def rank_of_job(rank: int, odd: int) -> Rank:
        alike, paired = rank % 2 == odd % 2, rank // 2 == odd // 2
        last = step(rank)[alike and paired : 3 if alike else 2 - paired]
        return Rank(rank, (*step(rank) * 4, *last), 11 + len(last))

    for odd in (2, 3):
        verdict = judge(evidence(*(rank_of_job(rank, odd) for rank in range(6)))).verdicts[0]
        assert (verdict.cause, verdict.culprits) == ("collective_mismatch", (odd,)), verdict.summary


def test_all_in_one_call_after_a_habit_that_two_left_names_nobody() -> None:
    steps = tuple(Call(W4, "alltoall_base", line=line) for _ in range(4) for line in (10, 11))
    news = [Call(W4, "alltoall_base", 3, line=line) for line in (44, 45)]
    odd = [Rank(r, (*steps, news[r], steps[0]), len(steps) + 1) for r in (0, 1)]
    rest = [Rank(r, (*steps, *steps[:2]), len(steps) + 1) for r in (2, 3)]
    assert judge(evidence(*odd, *rest)).verdicts[0].culprits == ()


def test_equal_calls_from_several_lines_are_told_apart_in_what_follows_what() -> None:
    """Each step gathers twice from line 13 and twice from line 60, alike; one rank begins the second step without its
    first call. That a gather follows the step's last call is no habit of the line that made it."""
    pair = world(2)

    def gather(line: int) -> Call:
        return Call(pair, "all_gather", 4096, line=line)

    loops = (Call(pair, "reduce_scatter", 256, line=10), gather(13)) * 2
    step = (*loops, *(gather(60), Call(pair, "all_gather", 256, line=63)) * 2)
    right, wrong = (*step, *step[:1]), (*step, *step[1:2])
    verdict = judge(evidence(Rank(0, right, len(step)), Rank(1, wrong, len(step)))).verdicts[0]
    assert verdict.cause == "collective_mismatch"
    assert 0 not in verdict.culprits, verdict.summary


def test_of_two_the_one_that_came_by_a_line_of_its_own_is_one_off() -> None:
    """An extra call from line 140 pairs with the usual one of line 120, and at the end that one with a barrier."""
    pair = world(2)
    step = (
        Call(pair, "all_reduce", 1024, line=90),
        Call(pair, "all_gather", 1024, line=93),
        Call(pair, "all_reduce", 1),
    )
    extra = (*step, *step[:2], Call(pair, "all_reduce", 1, line=140), step[2])
    usual = (*step, *step, Call(pair, "barrier", line=200))
    for order in ((extra, usual), (usual, extra)):
        ranks = [Rank(rank, calls, len(calls) - 1) for rank, calls in enumerate(order)]
        assert judge(evidence(*ranks)).verdicts[0].culprits in ((), (order.index(extra),))


def test_of_two_that_parted_in_their_first_calls_nobody_is_named() -> None:
    """One of them made a call of its own there, and it paired: whose line was the odd one, no earlier step tells."""
    pair = world(2)
    usual = (Call(pair, "broadcast", 64, line=10), Call(pair, "_all_gather_base", 8, line=13), Call(pair, line=16))
    extra = Call(pair, "broadcast", 64, line=140)
    ranks = (Rank(0, (extra, *usual[:1]), 1), Rank(1, usual[:2], 1))
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())


def test_of_two_of_four_the_one_that_called_from_a_new_line_is_not_named() -> None:
    """The other may have left something out long before: with the dumps of all it is two of two that differ."""
    extra, steps = Call(world(4), elements=7, line=44), loop(world(4), 4)
    ends = Call(world(4), "barrier", line=80)
    usual, odd = Rank(0, (*steps, ends), 8, backend="gloo"), Rank(1, (*steps[:-1], extra, steps[-1]), 8, backend="gloo")
    told = judge(evidence(usual, odd, world_size=4)).verdicts[0]
    assert (told.cause, told.culprits) == ("collective_mismatch", ())


@pytest.mark.parametrize(
    ("usual", "own"),
    [
        ("aaa", "aaba"),  # its own call was taken for the others' third, and it waits in one that they have not made
        ("abababab", "abaabab"),  # it left out a call, and lacks the last that the others wait in
    ],
)
def test_of_several_the_one_whose_lines_are_one_call_off_is_named(usual: str, own: str) -> None:
    """All calls are alike but for their lines; who does not wait in one stands in a message that no recorder shows."""
    lines = {"a": 10, "b": 44}
    ranks = []
    for rank in range(4):
        calls = tuple(Call(W4, line=lines[letter]) for letter in (own if rank == 1 else usual))
        waits = (len(own) > len(usual)) == (rank == 1)
        frames = () if waits else IN_RECV
        ranks.append(Rank(rank, calls, len(calls) - waits, frames=frames, wchan="futex_do_wait", backend="gloo"))
    told = judge(evidence(*ranks)).verdicts[0]
    assert (told.cause, told.culprits) == ("collective_mismatch", (1,)), told.summary


def test_of_two_of_four_the_one_that_did_not_go_on_as_before_is_not_named_while_the_others_have_not_come() -> None:
    """By its history rank 1 alone goes round; that the program has come to something new, the other two will tell."""
    steps = loop(W4, 4)
    ranks = [
        Rank(0, (*steps, Call(W4, "broadcast", 64)), 8),
        Rank(1, (*steps, steps[0]), 8),
        *(Rank(r, steps[:-2]) for r in (2, 3)),
    ]
    told = evidence(*ranks)
    bare = tuple(
        replace(ring, operations=tuple(replace(entry, frames=()) for entry in ring.operations))
        for rank in told.ranks
        for ring in rank.recorders
    )
    told = replace(
        told, ranks=tuple(replace(rank, recorders=bare[2 * n : 2 * n + 2]) for n, rank in enumerate(told.ranks))
    )
    verdict = judge(told).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("collective_mismatch", ())


@pytest.mark.parametrize("kept", [6, 16])
def test_who_stands_at_the_end_has_left_the_loop_whatever_its_ring_shows_first(kept: int) -> None:
    """Rank 0 waits in the barrier at the job's end for those that go round once more. Of little that the rings have
    kept, its last round is compared with the others' first one."""
    columns = [Group(str(1 + n), f"ep{n}", (2 * n, 2 * n + 1), 1) for n in (0, 1)]
    rows = [Group(str(3 + n), f"dp{n}", (n, n + 2), 2) for n in (0, 1)]
    ranks = []
    for rank in range(4):
        forward, back = (Call(columns[rank // 2], elements=8, line=line) for line in (10, 60))
        step = (forward, forward, back, back, Call(rows[rank % 2], elements=5, line=90))
        calls = (*step * 3, Call(world(4), "barrier", line=200)) if rank == 0 else step * 4
        ranks.append(Rank(rank, calls, 15 if rank < 2 else 19))
    told = evidence(*ranks, world_size=4)
    rings = (replace(one, recorders=tuple(_last(ring, kept) for ring in one.recorders)) for one in told.ranks)
    verdict = judge(replace(told, ranks=tuple(rings))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("data_exhausted", (0,))


def test_who_left_out_a_call_and_waits_at_the_end_with_those_that_did_not_has_not_left_the_loop() -> None:
    """Rank 3 lacks a call of its pair alone, which rank 2 waits in; ranks 4 to 7 have come to the end as it has."""
    columns = [Group(str(1 + n), f"ep{n}", (2 * n, 2 * n + 1), 1) for n in range(4)]
    rows = [Group(str(5 + n), f"dp{n}", pair, 2) for n, pair in enumerate(((0, 2), (1, 3), (4, 6), (5, 7)))]
    end, ranks = Call(world(8), "barrier", line=200), []
    for rank in range(8):
        forward, back = (Call(columns[rank // 2], elements=8, line=line) for line in (10, 60))
        row = next(group for group in rows if rank in group.ranks)
        step = (forward, forward, back, back, Call(row, elements=5, line=90))
        calls = [*step * 4]
        if rank == 3:
            del calls[8]
        calls = {0: calls, 2: calls[:-1]}.get(rank, [*calls, end])
        ranks.append(Rank(rank, tuple(calls), len(calls) - 1, backend="gloo"))
    told = judge(evidence(*ranks)).verdicts[0]
    assert (told.cause, told.culprits) == ("group_order", (3,))


def _last(ring: Recorder, kept: int) -> Recorder:
    return replace(ring, operations=ring.operations[-kept:])
