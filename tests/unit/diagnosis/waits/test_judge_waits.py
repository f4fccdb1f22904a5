"""Verdicts about who waits for whom, from literal jobs."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, SourceLine
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, loop, recorder, transfer, world

W4 = world(4)
STEPS = loop(W4, 6)


def _waiting(rank: int, calls: tuple[Call, ...] = (*STEPS, STEPS[0])) -> Rank:
    return Rank(rank, calls, len(calls) - 1)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_rank_that_never_entered_is_named_with_what_it_does(backend: str) -> None:
    absent = Rank(2, STEPS, frames=SLEEPS, backend=backend)
    others = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), backend=backend) for r in (0, 1, 3)]
    verdict = judge(evidence(others[0], others[1], absent, others[2])).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "likely")
    assert verdict.ends_by_itself == "sleep", "so nothing certain is said"
    assert verdict.waiting == "0-1,3"
    assert (verdict.operation, verdict.seq) == ("all_reduce", 13)
    assert verdict.process_group is not None
    assert verdict.process_group.ranks == (0, 1, 2, 3)


def test_chains_over_groups_collapse_to_the_rank_at_their_end() -> None:
    tp = {0: Group("1", "tp0", (0, 1), 1), 2: Group("2", "tp1", (2, 3), 1)}
    dp = {0: Group("3", "dp0", (0, 2), 2), 1: Group("4", "dp1", (1, 3), 2)}

    def step(rank: int) -> tuple[Call, ...]:
        return Call(tp[rank // 2 * 2], line=20), Call(dp[rank % 2], line=30)

    ranks = []
    for rank in range(4):
        past = step(rank) * 4
        if rank == 3:
            ranks.append(Rank(3, past, frames=SLEEPS))
        elif rank == 2:
            ranks.append(Rank(2, (*past, step(2)[0]), len(past)))
        else:
            ranks.append(Rank(rank, (*past, *step(rank)), len(past) + 1))
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


def test_what_is_enqueued_behind_another_group_is_not_entered() -> None:
    """Ranks 0 and 1 have enqueued the world's collective, but their GPUs stand in the pair that rank 1's peer lacks."""
    pair, rest = Group("1", "tp0", (0, 1), 1), Group("2", "tp1", (2, 3), 1)
    ranks = [
        Rank(0, (*STEPS, Call(pair), STEPS[0]), len(STEPS)),
        Rank(1, STEPS, frames=SLEEPS),
        Rank(2, (*STEPS, Call(rest), STEPS[0]), len(STEPS) + 1),
        Rank(3, (*STEPS, Call(rest), STEPS[0]), len(STEPS) + 1),
    ]
    assert judge(evidence(*ranks)).verdicts[0].culprits == (1,)


def test_a_barrier_that_gloo_does_not_record_is_a_wait() -> None:
    """monitored_barrier is made of sends and receives: nothing is pending in any recorder, and nobody is healthy."""
    inside = (CodeFrame("monitored_barrier", IN_RECV[0].filename, 5435), *SLEEPS[1:])
    ranks = [Rank(r, STEPS, frames=inside, wchan="futex_do_wait", backend="gloo") for r in (0, 1, 2)]
    verdict = judge(evidence(*ranks, Rank(3, STEPS, frames=SLEEPS, backend="gloo"))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))
    assert verdict.operation == "monitored_barrier"


@pytest.mark.parametrize(
    ("text", "culprits"),
    [("work = group.allreduce([tensor], opts)", (3,)), ("return pg.reduce_scatter(*args)", (3,)), ("work.wait()", ())],
)
def test_who_stands_where_a_call_is_handed_to_its_group_waits_in_what_is_not_recorded(
    text: str, culprits: tuple[int, ...]
) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: calls are compared first, and all that gloo's recorders hold has ended."""
    inside = (CodeFrame("all_reduce", IN_RECV[0].filename, 3245), *SLEEPS[1:])
    line = SourceLine(inside[0].filename, inside[0].line, text)
    job = evidence(
        *(Rank(r, STEPS, frames=inside, wchan="futex_do_wait", backend="gloo") for r in (0, 1, 2)),
        Rank(3, STEPS, frames=SLEEPS, backend="gloo"),
    )
    ranks = tuple(replace(rank, sources=(line,)) for rank in job.ranks)
    verdict = judge(replace(job, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered" if culprits else "undecided", culprits)
    assert verdict.confidence != "certain"


@pytest.mark.parametrize("members_known", [True, False])
def test_a_lock_that_a_thread_in_a_collective_holds_is_not_the_fault_of_who_waits_for_it(members_known: bool) -> None:
    """Ranks 0, 2 and 3 report metrics in a thread that holds a lock meanwhile; rank 1 reports none."""
    side = Group("1", "metrics", (0, 1, 2, 3), 1)
    at_lock = (CodeFrame("Condition.wait", "/usr/lib/python3.11/threading.py", 327), *SLEEPS)
    ranks = [
        Rank(
            r,
            (*STEPS, Call(side, thread="2")),
            len(STEPS),
            frames=at_lock,
            wchan="futex_do_wait",
            backend="gloo",
            members_known=members_known,
        )
        for r in (0, 2, 3)
    ]
    ranks.insert(1, Rank(1, (*STEPS, STEPS[0]), len(STEPS), backend="gloo", members_known=members_known))
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (1,), "possible")
    assert "for a lock, while another thread of the same process waits in all_reduce #1 of metrics" in (
        verdict.because[0].fact
    )


def test_members_of_a_batch_take_the_state_of_its_closing_entry() -> None:
    """A pipeline of three: rank 1 works; 0 and 2 wait for it in batches."""
    group = world(3)
    first = transfer(group, ("send", 1), ("recv", 1), batched=True)
    last = transfer(group, ("send", 1), ("recv", 1), batched=True)
    middle = transfer(group, ("send", 0), ("recv", 0), ("send", 2), ("recv", 2), batched=True)
    ranks = [
        Rank(0, (first,) * 4, 3),
        Rank(1, (middle,) * 3, frames=SLEEPS),
        Rank(2, (last,) * 4, 3),
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (1,))


def test_transfers_are_named_by_ranks_of_their_group() -> None:
    stage = Group("1", "pp", (1, 3), 1)
    ranks = [
        _waiting(0),
        Rank(1, (*STEPS, transfer(stage, ("recv", 1))), len(STEPS)),
        _waiting(2),
        Rank(3, STEPS, frames=SLEEPS),
    ]
    assert judge(evidence(*ranks)).verdicts[0].culprits == (3,)


def test_a_host_still_inside_the_batch_has_not_sent() -> None:
    group = world(2)
    open_batch = transfer(group, ("send", 1), ("recv", 1), batched=True, closed=False)
    closed = transfer(group, ("send", 0), ("recv", 0), batched=True)
    mine = transfer(group, ("send", 1), ("recv", 1), batched=True)
    ranks = [Rank(0, (mine, mine, open_batch), 2), Rank(1, (closed,) * 3, 2)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert verdict.cause in ("not_entered", "p2p_unmatched")
    assert 0 in verdict.culprits


def test_gloo_receives_are_seen_by_stacks_alone() -> None:
    ranks = [Rank(r, STEPS, frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for r in (0, 1)]
    ranks += [Rank(r, (*STEPS, STEPS[0]), len(STEPS), backend="gloo") for r in (2, 3)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("p2p_unmatched", (0, 1))


def test_all_entered_and_none_finished_names_nobody() -> None:
    verdict = judge(evidence(*(_waiting(r) for r in range(4)))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("comm_stuck", ())


def test_one_nodes_view_of_a_larger_job_is_never_comm_stuck() -> None:
    large = world(8)
    calls = (*loop(large, 6), Call(large))
    verdict = judge(evidence(*(Rank(r, calls, len(calls) - 1) for r in range(4)), world_size=8)).verdicts[0]
    assert verdict.cause == "undecided"
    assert any("ranks 4-7" in text for text in verdict.missing)


def test_a_local_culprit_is_proven_though_other_nodes_are_dark() -> None:
    large = world(8)
    calls = loop(large, 6)
    ranks = [Rank(r, (*calls, Call(large)), len(calls)) for r in (0, 1, 3)]
    verdict = judge(evidence(*ranks, Rank(2, calls, frames=SLEEPS), world_size=8)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))
    assert verdict.confidence != "certain"


def test_a_rank_without_any_evidence_is_not_accused() -> None:
    verdict = judge(evidence(_waiting(0), _waiting(1), _waiting(3), world_size=4)).verdicts[0]
    assert verdict.cause == "undecided"
    assert verdict.culprits == ()


def test_a_missing_dump_and_the_same_stack_as_the_waiting_ranks_is_unknown() -> None:
    ranks = [Rank(r, (*STEPS, STEPS[0]), len(STEPS), frames=SLEEPS) for r in range(3)]
    silent = Rank(3, frames=SLEEPS, dumped=False)
    verdict = judge(evidence(*ranks, silent)).verdicts[0]
    assert verdict.culprits == ()


def test_a_missing_dump_and_a_stack_elsewhere_is_likely_absent() -> None:
    silent = Rank(3, frames=SLEEPS, dumped=False)
    verdict = judge(evidence(_waiting(0), _waiting(1), _waiting(2), silent)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (3,), "likely")


def test_split_groups_with_local_names_are_one_group() -> None:
    mine, theirs = Group("5", "shard", (0, 1), 3), Group("9", "shard", (0, 1), 7)
    ranks = [Rank(0, (Call(mine),) * 4, 3), Rank(1, (Call(theirs),) * 3, frames=SLEEPS)]
    assert judge(evidence(*ranks)).verdicts[0].culprits == (1,)


def test_a_background_thread_that_moves_does_not_hide_the_stuck_one() -> None:
    saver = Group("1", "checkpoint", (0, 1, 2, 3), 1)
    saves = (Call(saver, "barrier", thread="2"),)

    def rank(number: int, waits: bool) -> Rank:
        calls = (*STEPS, *saves, *((STEPS[0],) if waits else ()), *saves)
        return Rank(number, calls, len(STEPS) + 1, frames=() if waits else SLEEPS, looks=1)

    ranks = [rank(0, True), rank(1, True), rank(2, True), rank(3, False)]
    verdict = judge(evidence(*ranks, looks=1)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


@pytest.mark.parametrize("posted", [False, True])
def test_two_ends_of_a_message_are_named_only_where_one_has_not_posted_its_side(posted: bool) -> None:
    """Ranks 0 and 1 lie in all ways of the cycle; behind what rank 1 waits in it may have posted the send to rank 0."""
    later = (transfer(W4, ("send", 0), line=60),) if posted else ()
    ends = {0: (("recv", 1),), 1: (("recv", 2), ("recv", 3)), 2: (("recv", 0),), 3: (("recv", 0),)}
    ranks = [Rank(r, (transfer(W4, *ends[r], batched=True), *(later if r == 1 else ())), 0) for r in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].culprits == (() if posted else (0, 1))


def test_what_a_peer_calls_next_and_the_program_began_with_is_where_a_loop_goes_round_again() -> None:
    """Only one step is past: rank 0 calls the end of a step twice, rank 1 begins the next one."""
    rows = [Group("1", "cp0", (0, 1), 1), Group("2", "cp1", (2, 3), 1)]

    def calls(rank: int) -> tuple[Call, ...]:
        return Call(rows[rank // 2], line=20), Call(W4, elements=1, line=30)

    swapped = Rank(0, (*calls(0), calls(0)[1]), 2, backend="gloo")
    begins = Rank(1, (*calls(1), calls(1)[0]), 2, backend="gloo")
    stands = [Rank(r, calls(r), frames=IN_RECV, wchan="futex_do_wait", backend="gloo") for r in (2, 3)]
    assert judge(evidence(swapped, begins, *stands)).verdicts[0].culprits == (0,)


def test_in_the_first_step_nothing_tells_who_calls_one_more_from_who_leaves_one_out() -> None:
    pair = Group("1", "cp0", (0, 1), 1)
    step = (Call(pair, line=10), Call(pair, line=13), Call(world(2), elements=2, line=109))
    goes_on = Rank(0, (*step, Call(world(2), elements=1024, dtype="Byte", line=110)), 3, backend="gloo")
    begins = Rank(1, (*step, step[0]), 3, backend="gloo")
    assert judge(evidence(goes_on, begins)).verdicts[0].culprits in ((), (0, 1))


def test_what_came_to_the_front_between_two_looks_has_not_stood_there_for_two() -> None:
    """A deep queue: all had enqueued the call at the first look, and the GPUs have come to it since."""
    calls = (*STEPS, STEPS[0], STEPS[1])

    def rank(number: int) -> Rank:
        first = recorder(number, calls, len(calls) - 2)
        return Rank(
            number, calls, len(calls) - 1, dumped=False, extra=(first, recorder(number, calls, len(calls) - 1, look=2))
        )

    assert judge(evidence(*(rank(number) for number in range(4)))).verdicts[0].cause == "healthy"


def test_ranks_that_wait_for_a_call_whose_turn_has_just_come_are_not_stuck() -> None:
    """Rank 0 and 1 stand in the world's call at both looks; 2 and 3 have come from their pair's first to its second."""
    pair = Group("1", "tp1", (2, 3), 1)
    busy = (*STEPS, Call(pair), Call(pair), STEPS[0])

    def works(number: int) -> Rank:
        looks = tuple(recorder(number, busy, len(STEPS) + look - 1, look=look) for look in (1, 2))
        return Rank(number, busy, dumped=False, extra=looks)

    verdict = judge(evidence(_waiting(0), _waiting(1), works(2), works(3))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("waiting", (2, 3))


def test_of_a_message_that_never_came_either_end_is_possible_though_one_waits_in_a_collective() -> None:
    ranks = [Rank(0, (transfer(W4, ("recv", 1)),), 0), *(Rank(rank, (Call(W4),), 0) for rank in (1, 2, 3))]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("p2p_unmatched", (0, 1), "possible")


def test_a_call_of_its_own_in_a_pipeline_is_named_by_what_the_others_wait_in() -> None:
    """Both a transfer and a collective have followed before; its peer waits in the collective."""
    row = Group("1", "dp0", (0, 1), 1)
    stage = Group("2", "pp0", (0, 2), 2)

    def step(rank: int) -> tuple[Call, ...]:
        forward = (Call(row, line=20),) if rank < 2 else ()
        moves = {0: (transfer(stage, ("send", 1), line=30),), 2: (transfer(stage, ("recv", 0), line=31),)}.get(rank, ())
        return (*forward, *moves, *forward, *moves, Call(W4, elements=1, line=40))

    past = {rank: step(rank) * 3 for rank in range(4)}
    odd = (*past[0], *step(0)[:2], Call(W4, elements=1, line=40), *step(0)[2:-1])
    ranks = [
        Rank(0, odd, len(past[0]) + 2),
        Rank(1, (*past[1], *step(1)), len(past[1]) + 1),
        Rank(2, (*past[2], *step(2)), len(past[2]) + 1),
        Rank(3, (*past[3], *step(3)), len(past[3])),
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("group_order", (0,))


def test_nothing_is_certain_while_a_part_of_the_job_was_not_seen() -> None:
    """All members of the group were seen, and the culprit entering would resolve all that was recorded."""
    group = Group("1", "tp0", (0, 1, 2, 3), 1)
    steps = loop(group, 6)
    ranks = [Rank(r, (*steps, steps[0]), len(steps)) for r in (0, 1, 3)]
    verdict = judge(evidence(*ranks, Rank(2, steps, frames=SLEEPS), world_size=8)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "likely")
