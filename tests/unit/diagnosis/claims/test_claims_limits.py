"""Where an explanation ends: each of these was once true of a claim that must not be made."""

from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame
from stallwatch.model.log_event import LogEvent
from stallwatch.model.verdict import Verdict
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence, loop, world

W4 = world(4)
STEPS = loop(W4, 6)


def _waiting(*ranks: int) -> list[Rank]:
    return [Rank(r, (*STEPS, STEPS[0]), len(STEPS)) for r in ranks]


def test_everybody_entered_is_not_said_while_one_has_not() -> None:
    verdict = judge(evidence(*_waiting(0, 1, 2), Rank(3, STEPS, frames=SLEEPS))).verdicts[0]
    assert verdict.cause == "not_entered"
    assert [item.why for item in verdict.rejected if item.cause == "comm_stuck"] == ["somebody has not entered"]


def test_everybody_entered_is_not_said_of_one_pair_while_another_lacks_a_member() -> None:
    pairs = (Group("1", "dp0", (0, 1), 1), Group("2", "dp1", (2, 3), 2))
    steps = {rank: (Call(pairs[rank // 2]),) * 5 for rank in range(4)}
    away = Rank(3, steps[3][:4], frames=SLEEPS)
    verdict = judge(evidence(*(Rank(rank, steps[rank], 4) for rank in (0, 1, 2)), away)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))
    why = [item.why for item in verdict.rejected if item.cause == "comm_stuck"]
    assert why == ["other waits end at ranks that have not entered"]


def test_everybody_entered_is_said_of_the_whole_job_only() -> None:
    told = judge(evidence(*_waiting(0, 1, 2, 3), world_size=4)).verdicts[0]
    assert (told.cause, told.culprits, told.confidence) == ("comm_stuck", (), "likely")
    partly = judge(evidence(*_waiting(0, 1, 2, 3), world_size=8)).verdicts[0]
    assert partly.cause != "comm_stuck"


def test_a_job_that_has_communicated_misses_nobody_at_its_start() -> None:
    """Rank 3 wrote no dump and stands elsewhere; the others completed calls before."""
    verdict = judge(evidence(*_waiting(0, 1, 2), Rank(3, frames=SLEEPS, dumped=False))).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


def test_a_transfer_is_unmatched_only_where_nobody_is_elsewhere() -> None:
    ranks = [
        *(Rank(r, STEPS, backend="gloo", frames=IN_RECV) for r in (0, 1)),
        Rank(2, STEPS, backend="gloo", frames=SLEEPS),
        Rank(3, (*STEPS, STEPS[0]), len(STEPS), backend="gloo"),
    ]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (2,))


def test_an_exception_that_only_tells_of_a_lost_peer_is_not_the_first_fact() -> None:
    told = evidence(*_waiting(0, 1, 2), Rank(3, STEPS, frames=SLEEPS))
    lost = LogEvent(kind="exception", text="RuntimeError: Connection closed by peer [127.0.0.1]:1234", line=1)
    ranks = tuple(replace(rank, log_events=(lost,)) if rank.rank == 0 else rank for rank in told.ranks)
    verdict = judge(replace(told, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


_SAVES = (
    CodeFrame("save", "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", 900),
    CodeFrame("<module>", "/srv/job/train.py", 70),
)


def _saving(read_bytes: int | None) -> Verdict:
    told = evidence(*_waiting(0, 1, 2), Rank(3, STEPS, frames=_SAVES))
    rank = told.ranks[3]
    looks = tuple(replace(look, read_bytes=read_bytes, write_bytes=read_bytes) for look in rank.processes)
    return judge(replace(told, ranks=(*told.ranks[:3], replace(rank, processes=looks)))).verdicts[0]


def test_the_same_stack_twice_is_no_standstill_where_nobody_sees_whether_bytes_flow() -> None:
    unread = _saving(None)
    assert (unread.cause, unread.culprits, unread.confidence) == ("not_entered", (3,), "possible")
    assert _saving(7 << 20).confidence == "likely", "and storage may answer late"


def test_a_rank_whose_stack_stands_in_a_collective_that_its_dump_lacks_is_not_surely_absent() -> None:
    inside = (CodeFrame("all_reduce", IN_RECV[0].filename, 2500), *SLEEPS[1:])
    plain, contradicted = (
        judge(evidence(*_waiting(0, 1, 2), Rank(3, STEPS, frames=frames))).verdicts[0] for frames in (SLEEPS, inside)
    )
    assert (plain.cause, plain.culprits, plain.confidence) == ("not_entered", (3,), "likely")
    assert (contradicted.cause, contradicted.confidence) == ("not_entered", "possible")


def test_who_waits_for_its_gpu_with_nothing_pending_is_not_accused() -> None:
    """Some communication is never recorded."""
    waits = (
        CodeFrame("synchronize", "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 985),
        *SLEEPS[1:],
    )
    verdict = judge(evidence(*_waiting(0, 1, 2), Rank(3, STEPS, frames=waits, wchan="futex_do_wait"))).verdicts[0]
    assert 3 not in verdict.culprits


def test_an_end_in_order_is_no_cause_of_anything_where_nobody_waits_for_it() -> None:
    over = [Rank(r, STEPS, dumped=False, state="X", exit_code=0) for r in range(4)]
    verdict = judge(evidence(*over)).verdicts[0]
    assert (verdict.cause, verdict.because[0].fact) == ("healthy", "every process ended with exit code 0")
    one = judge(evidence(*(Rank(r, STEPS) for r in range(3)), over[3])).verdicts[0]
    assert (one.cause, one.culprits) == ("undecided", ())
    assert "rank 3 ended with exit code 0 and nobody waits for them" in [item.why for item in one.rejected]


DESTROYS = (CodeFrame("destroy_process_group", IN_RECV[0].filename, 1), *SLEEPS[1:])


def test_one_in_its_teardown_while_others_wait_may_have_raised_and_where_all_are_nobody_has() -> None:
    leaves = Rank(2, STEPS, frames=DESTROYS, wchan="futex_do_wait")
    verdict = judge(evidence(*_waiting(0, 1), leaves, *_waiting(3))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("rank_raised", (2,), "possible")
    everybody = judge(evidence(*(Rank(r, STEPS, frames=DESTROYS, wchan="futex_do_wait") for r in range(4)))).verdicts[0]
    assert everybody.culprits == ()
