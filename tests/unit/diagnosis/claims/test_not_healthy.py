"""What must never be called healthy: standing still that a little evidence makes look like motion or like peace."""

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence, GroupStatus, RankEvidence, Recorder
from stallwatch.model.verdict import Verdict
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, loop, recorder, world

W4 = world(4)
SAVER = Group("9", "async_checkpoint", (0, 1, 2, 3), pg_id=7)
_IN_JOB = (CodeFrame("ring", "/srv/job/train.py", 44), CodeFrame("<module>", "/srv/job/train.py", 99))


def _first(*ranks: RankEvidence, looks: int = 2) -> Verdict:
    return judge(Evidence(4, "gloo", ranks, (), (), looks=looks)).verdicts[0]


def _without_threads(recorder: Recorder) -> Recorder:
    operations = tuple(msgspec.structs.replace(o, thread_id=None, thread_name=None) for o in recorder.operations)
    return msgspec.structs.replace(recorder, operations=operations)


def _saved_between_looks(rank: int, calls: tuple[Call, ...], done: int) -> RankEvidence:
    """The training thread stands; a background thread has saved on between the two looks."""
    saves = tuple(Call(SAVER, elements=8, line=70) for _ in range(6))
    looks = [
        _without_threads(_settled(recorder(rank, (*calls, *saves[:count]), done, backend="gloo", look=look), done))
        for look, count in ((1, 3), (2, 6))
    ]
    found = Rank(rank, (), dumped=False, frames=SLEEPS if done == len(calls) else ()).evidence()
    return msgspec.structs.replace(found, recorders=tuple(looks))


def _settled(recorder: Recorder, done: int) -> Recorder:
    """The saver's calls are over, though they come after the one that stands."""
    return msgspec.structs.replace(
        recorder,
        operations=tuple(
            msgspec.structs.replace(o, retired=place < done or o.group_description == SAVER.description)
            for place, o in enumerate(recorder.operations)
        ),
    )


def _beside_a_standstill(rank: int, look: int) -> Recorder:
    """The training thread waits in its tenth call; a second one calls on, in the same group or in one of its own."""
    steps = loop(W4, 5)
    others = tuple(Call(group, line=70, thread="2") for _ in range(3 * look) for group in (SAVER, W4))
    made = recorder(rank, (*steps, *others), backend="gloo", look=look)
    operations = tuple(
        msgspec.structs.replace(o, retired=place != len(steps) - 1) for place, o in enumerate(made.operations)
    )
    return msgspec.structs.replace(made, operations=operations)


def test_what_a_second_thread_calls_is_no_motion_of_training() -> None:
    ranks = [
        msgspec.structs.replace(
            Rank(rank, (), dumped=False, frames=SLEEPS).evidence(),
            recorders=tuple(_beside_a_standstill(rank, look) for look in (1, 2)),
        )
        for rank in range(4)
    ]
    verdict = _first(*ranks)
    assert verdict.cause not in ("healthy", "slow_rank", "waiting")


def test_the_same_two_looks_are_never_healthy() -> None:
    """First barrier over a new connection: the entry reads as done, and two looks show the same."""
    ranks = [Rank(rank, loop(W4, 5), backend="gloo", looks=2, frames=SLEEPS).evidence() for rank in range(4)]
    assert _first(*ranks).cause == "undecided"


def test_another_groups_calls_are_no_motion_where_no_dump_names_threads() -> None:
    steps = loop(W4, 5)
    waiting = [_saved_between_looks(rank, steps, 9) for rank in (0, 1, 2)]
    verdict = _first(*waiting, _saved_between_looks(3, steps[:9], 9))
    assert (verdict.cause, verdict.culprits) == ("not_entered", (3,))


def test_a_pending_call_that_the_ring_has_lost_is_not_forgotten() -> None:
    def outrun(rank: int) -> RankEvidence:
        saves = tuple(Call(SAVER, elements=8, line=70) for _ in range(6))
        looks = tuple(
            msgspec.structs.replace(
                recorder(rank, saves, backend="gloo", look=look, first_record=100 * look),
                status=(GroupStatus(0, 11, -1, 10), GroupStatus(7, 6, -1, 6)),
            )
            for look in (1, 2)
        )
        return msgspec.structs.replace(Rank(rank, dumped=False, frames=SLEEPS).evidence(), recorders=looks)

    assert _first(*(outrun(rank) for rank in range(4))).cause == "undecided"


def test_one_rank_at_work_while_all_others_stand_in_the_start_is_what_they_wait_for() -> None:
    init = (
        CodeFrame("init_process_group", "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9),
    )
    standing = [Rank(rank, dumped=False, frames=(*init, *_IN_JOB), wchan="do_poll").evidence() for rank in range(5)]
    late = _at_work(Rank(5, dumped=False, frames=SLEEPS).evidence())
    verdict = judge(Evidence(6, "nccl", (*standing, late), (), (), looks=2)).verdicts[0]
    assert verdict.cause != "healthy"


def _at_work(rank: RankEvidence) -> RankEvidence:
    first, last = rank.stacks
    other = (CodeFrame("load", "/srv/job/data.py", 70), *SLEEPS[1:])
    thread = msgspec.structs.replace(last.threads[0], frames=other)
    return msgspec.structs.replace(rank, stacks=(first, msgspec.structs.replace(last, threads=(thread,))))


@pytest.mark.parametrize("looks", [1, 2])
def test_sleep_in_c_that_nobody_explains_may_be_a_wait_that_gloo_does_not_record(looks: int) -> None:
    steps = loop(W4, 5)
    ranks = [Rank(r, steps, frames=_IN_JOB, backend="gloo", wchan=None, looks=looks).evidence() for r in range(3)]
    last = Rank(3, steps, frames=SLEEPS, backend="gloo", looks=looks).evidence()
    assert _first(*ranks, last, looks=looks).cause != "healthy"


def test_stacks_that_were_not_read_leave_room_for_a_wait() -> None:
    ranks = [Rank(rank, loop(W4, 5), backend="gloo", wchan="futex_wait_queue") for rank in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].cause == "undecided"


def test_ranks_that_nobody_saw_leave_room_for_a_wait() -> None:
    ranks = [Rank(rank, loop(W4, 5), frames=SLEEPS) for rank in range(3)]
    assert judge(evidence(*ranks, world_size=4)).verdicts[0].cause == "undecided"


def test_states_of_processes_alone_say_nothing_of_waits() -> None:
    ranks = [Rank(rank, dumped=False) for rank in range(4)]
    assert judge(evidence(*ranks)).verdicts[0].cause == "undecided"


def test_a_watchdog_that_lags_behind_the_entries_is_no_lost_call() -> None:
    def lagging(rank: int) -> RankEvidence:
        whole = recorder(rank, loop(W4, 5), first_record=500)
        status = (GroupStatus(0, 10, -1, 9),)
        return msgspec.structs.replace(
            Rank(rank, dumped=False, frames=SLEEPS).evidence(),
            recorders=(msgspec.structs.replace(whole, status=status),),
        )

    verdict = judge(Evidence(4, "nccl", tuple(map(lagging, range(4))), (), ())).verdicts[0]
    assert not any("lost" in rejected.why for rejected in verdict.rejected)


def test_stacks_that_change_are_threads_that_move_and_no_proof_of_a_job_that_does() -> None:
    ranks = [_at_work(Rank(rank, dumped=False, frames=SLEEPS).evidence()) for rank in range(4)]
    assert (_first(*ranks).cause, _first(*ranks).confidence) == ("healthy", "possible")


def test_calls_that_end_on_every_rank_are() -> None:
    """All ranks, or it is not certain; nor where no entry was ever seen unfinished."""
    steps = loop(world(4), 8)
    ranks = [_saved_between_looks(rank, steps, len(steps)) for rank in range(4)]
    verdict = _first(*ranks)
    assert (verdict.cause, verdict.confidence) == ("healthy", "likely")
    begun = [_saved_between_looks(rank, steps, len(steps) - 1) for rank in range(4)]
    ended = [
        msgspec.structs.replace(new, recorders=(old.recorders[0], new.recorders[1]))
        for old, new in zip(begun, ranks, strict=True)
    ]
    verdict = _first(*ended)
    assert (verdict.cause, verdict.confidence) == ("healthy", "certain")
    unread = _at_work(Rank(3, dumped=False, frames=SLEEPS).evidence())
    verdict = _first(*ranks[:3], unread)
    assert (verdict.cause, verdict.confidence) == ("healthy", "likely")


_READS = (
    CodeFrame("Path.read_bytes", "/usr/lib/python3.11/pathlib.py", 1050),
    CodeFrame("load", "/srv/job/data.py", 31),
)


def test_ranks_that_all_stand_in_storage_wait_for_nobody_and_are_not_well() -> None:
    """A file server that is gone for every rank at once: no call is outstanding, and nothing moves."""
    steps = loop(W4, 5)
    ranks = [
        Rank(r, steps, frames=(*_READS, *SLEEPS[1:]), backend="gloo", wchan="folio_wait_bit", looks=2).evidence()
        for r in range(4)
    ]
    assert _first(*ranks).cause == "undecided"
    moved = _at_work(ranks[3])
    assert _first(*ranks[:3], moved).cause == "undecided", "one of them goes on; what of the others?"


@pytest.mark.parametrize(("dumped", "healthy"), [(2, False), (3, True)])
def test_calls_that_ended_before_a_look_without_a_dump_prove_no_motion_at_it(dumped: int, healthy: bool) -> None:
    """A rank had gathered, and stood in the next gather at two looks; of the last its dump had not come yet."""
    steps = loop(W4, 10)
    ranks = []
    for rank in range(4):
        found = Rank(rank, steps, backend="gloo", looks=3, frames=SLEEPS).evidence()
        dumps = [
            recorder(rank, steps[:count], count, backend="gloo", look=look) for look, count in ((1, 5), (dumped, 10))
        ]
        ranks.append(msgspec.structs.replace(found, recorders=tuple(dumps)))
    assert (_first(*ranks, looks=3).cause == "healthy") is healthy


def test_of_a_world_of_which_a_rank_left_nothing_it_is_judged_all_the_same() -> None:
    """Each of three is seen to go on; of the fourth there is not even a folder."""
    ranks = []
    for rank in range(3):
        looks = tuple(recorder(rank, loop(W4, 5 + look), 5 + look, backend="gloo", look=look) for look in (1, 2))
        ranks.append(msgspec.structs.replace(Rank(rank, (), dumped=False, frames=()).evidence(), recorders=looks))
    assert _first(*ranks).confidence != "certain"
