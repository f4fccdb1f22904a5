"""Who never joined: in rendezvous with gloo, in the creation of the communicator with NCCL, or a group."""

from typing import Any

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import Attempt, CodeFrame, Evidence, RankEvidence, ThreadState
from stallwatch.model.hook_report import GroupCall, HookReport, NamedCall
from stallwatch.model.rendezvous import Apart, Rendezvous
from stallwatch.model.verdict import Verdict
from tests.builders.clock import SECOND_NS
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, loop, transfer, world

_UTILS = "/opt/venv/lib/python3.11/site-packages/torch/distributed/utils.py"
_C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
MODULE = CodeFrame("<module>", "/srv/job/train.py", 60)
VERIFIES = (CodeFrame("_verify_param_shape_across_processes", _UTILS, 286), MODULE)
JOINS = (CodeFrame("init_process_group", _C10D, 1700), MODULE)
NO_DUMP = "answered without a dump: torch is not loaded or has no recorder"


def _asked(rank: Rank, detail: str = "", *, answered: bool = True, threads: tuple[str, ...] = ()) -> RankEvidence:
    """Evidence of a rank whose recorder was asked for, and which has these threads beside its main one."""
    told = rank.evidence()
    looks = tuple(
        msgspec.structs.replace(
            look,
            threads=(*look.threads, *(ThreadState(5000 + i, name, "S", 1, None) for i, name in enumerate(threads))),
        )
        for look in told.processes
    )
    attempts = (Attempt("flight_recorder", 1, 1, answered, detail),)
    return msgspec.structs.replace(told, processes=looks, attempts=attempts)


def _job(*ranks: RankEvidence) -> Evidence:
    return msgspec.structs.replace(evidence(*(Rank(rank.rank) for rank in ranks)), ranks=ranks)


def _joined(rank: int, calls: int = 0) -> RankEvidence:
    recorded = loop(world(4), calls)
    told = Rank(rank, recorded, frames=VERIFIES, state="R", wchan=None)
    return _asked(told, "nccl 118 bytes", threads=("pt_nccl_watchdg", "pt_nccl_heartbt"))


def test_with_nccl_the_others_stand_in_the_creation_of_a_communicator() -> None:
    absent = _asked(Rank(3, dumped=False, frames=SLEEPS), NO_DUMP)
    told = judge(_job(*(_joined(rank) for rank in range(3)), absent)).verdicts[0]
    assert (told.cause, told.culprits, told.confidence) == ("init_missing", (3,), "likely")
    assert told.waiting == "0-2"
    assert told.operation == "init_process_group"


def test_threads_tell_where_no_hook_answers() -> None:
    absent = _asked(Rank(3, dumped=False, frames=SLEEPS), "no hook", answered=False, threads=("cuda-EvtHandlr",))
    told = judge(_job(*(_joined(rank) for rank in range(3)), absent)).verdicts[0]
    assert (told.cause, told.culprits) == ("init_missing", (3,))


@pytest.mark.parametrize("thread", ["pt_nccl_watchdg", "pt_nccl2_heartb", "pt_gloo_runloop"])
def test_a_rank_with_a_process_group_has_joined_though_it_does_not_answer(thread: str) -> None:
    busy = _asked(Rank(3, dumped=False, frames=SLEEPS), "no answer", answered=False, threads=(thread,))
    told = judge(_job(*(_joined(rank) for rank in range(3)), busy)).verdicts[0]
    assert (told.cause, told.culprits) == ("not_entered", (3,))


def test_who_left_its_group_after_the_job_communicated_is_not_missing_from_its_start() -> None:
    left = _asked(Rank(3, dumped=False, frames=SLEEPS), NO_DUMP)
    told = judge(_job(*(_joined(rank, calls=3) for rank in range(3)), left)).verdicts[0]
    assert told.cause != "init_missing"


def test_with_gloo_the_others_stand_in_the_rendezvous() -> None:
    waiting = [Rank(rank, dumped=False, frames=JOINS, wchan="do_poll").evidence() for rank in range(3)]
    told = judge(_job(*waiting, Rank(3, dumped=False, frames=SLEEPS).evidence())).verdicts[0]
    assert (told.cause, told.culprits, told.waiting) == ("init_missing", (3,), "0-2")


_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/srv/job/train.py", line 60, in <module>',
    "    dist.init_process_group()",
)
TIMED_OUT = (
    *_TRACEBACK,
    "torch.distributed.DistStoreError: wait timeout after 30000ms, keys: /default_pg/0//0//cpu//0",
)
OWN_ERROR = (*_TRACEBACK, "ValueError: no interface eth7")


@pytest.mark.parametrize(
    ("log", "cause", "culprits", "confidence"),
    [
        (TIMED_OUT, "init_missing", (3,), "likely"),
        ((), "init_missing", (3,), "possible"),
        (OWN_ERROR, "rank_exited", (1,), "certain"),
    ],
)
def test_a_time_out_at_the_start_is_no_cause(
    log: tuple[str, ...], cause: str, culprits: tuple[int, ...], confidence: str
) -> None:
    """Ranks 1 and 2 die of it, in a traceback that names nobody; their launcher then ends those that are left."""
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    ended = [
        Rank(1, exit_code=1, ended_ns=SECOND_NS, log=log, **at_rendezvous),
        Rank(2, exit_code=1, ended_ns=SECOND_NS * 11 // 10, log=TIMED_OUT, **at_rendezvous),
        Rank(0, exit_signal=15, ended_ns=SECOND_NS * 3 // 2, **at_rendezvous),
    ]
    late = Rank(3, dumped=False, frames=SLEEPS, state="X", exit_signal=15, ended_ns=SECOND_NS * 3 // 2)
    told = judge(evidence(*ended, late)).verdicts[0]
    assert (told.cause, told.culprits, told.confidence) == (cause, culprits, confidence)


def test_who_ended_by_itself_before_it_came_is_the_cause_of_the_others_time_out() -> None:
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    ended = [Rank(r, exit_code=1, ended_ns=SECOND_NS * 30, log=TIMED_OUT, **at_rendezvous) for r in range(3)]
    first = Rank(3, dumped=False, frames=SLEEPS, state="X", exit_code=1, ended_ns=SECOND_NS)
    told = judge(evidence(*ended, first)).verdicts[0]
    assert (told.cause, told.culprits) == ("rank_exited", (3,))


def test_all_in_the_rendezvous_accuse_nobody() -> None:
    waiting = [Rank(rank, dumped=False, frames=JOINS, wchan="do_poll").evidence() for rank in range(4)]
    assert judge(_job(*waiting)).verdicts[0].culprits == ()


def _started_late(told: RankEvidence) -> RankEvidence:
    """The same rank, looked at once before: it was still making its CUDA context then."""
    starting = CodeFrame("_lazy_init", "/opt/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 410)
    later = tuple(msgspec.structs.replace(one, look=one.look + 1) for one in told.stacks)
    threads = tuple(
        msgspec.structs.replace(thread, frames=(starting, CodeFrame("build", "/srv/job/train.py", 12), MODULE))
        for thread in told.stacks[0].threads
    )
    return msgspec.structs.replace(
        told,
        stacks=(msgspec.structs.replace(told.stacks[0], threads=threads), *later),
        processes=tuple(msgspec.structs.replace(one, look=one.look + 1) for one in told.processes),
        recorders=tuple(msgspec.structs.replace(one, look=one.look + 1) for one in told.recorders),
    )


def test_ranks_that_were_still_starting_at_the_first_look_do_not_make_the_job_healthy_for_ever() -> None:
    absent = _asked(Rank(3, dumped=False, frames=SLEEPS), NO_DUMP)
    told = judge(_job(*(_started_late(_joined(rank)) for rank in range(3)), absent)).verdicts[0]
    assert (told.cause, told.culprits) == ("init_missing", (3,))


def test_all_at_the_rendezvous_are_told_what_to_compare() -> None:
    ranks = [_asked(Rank(r, frames=JOINS, dumped=False, wchan="do_poll"), NO_DUMP) for r in range(4)]
    verdict = judge(_job(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("undecided", ())
    assert "Ranks 0-3 wait at the rendezvous for each other" in verdict.summary
    assert "MASTER_PORT" in verdict.summary
    assert "MASTER_PORT" in verdict.next_steps[0]


def test_a_part_of_the_ranks_at_the_rendezvous_names_those_of_which_nothing_was_seen() -> None:
    ranks = [_asked(Rank(r, frames=JOINS, dumped=False, wchan="do_poll"), NO_DUMP) for r in (0, 1, 3)]
    verdict = judge(msgspec.structs.replace(_job(*ranks), world_size=4)).verdicts[0]
    assert "Ranks 0-1,3 wait at the rendezvous for rank 2, of which nothing was seen here" in verdict.summary


def _waits(rank: int) -> RankEvidence:
    return _asked(Rank(rank, dumped=False, frames=JOINS, wchan="poll_schedule_timeout"), NO_DUMP)


def _meeting(meeting: Rendezvous, *ranks: int) -> Verdict:
    return judge(
        msgspec.structs.replace(_job(*(_waits(rank) for rank in ranks)), world_size=4, meeting=meeting)
    ).verdicts[0]


def test_a_rank_that_has_no_process_where_alone_it_can_be_never_came() -> None:
    told = _meeting(Rendezvous("127.0.0.1:29500", never_seen=(2,)), 0, 1, 3)
    assert (told.cause, told.culprits, told.confidence, told.waiting) == ("init_missing", (2,), "likely", "0-1,3")


@pytest.mark.parametrize(
    "meeting",
    [
        Rendezvous("127.0.0.1:29500", never_seen=(2,)),
        Rendezvous("127.0.0.1:29500", apart=(Apart(2, "127.0.0.1:29501"),)),
    ],
)
def test_who_met_elsewhere_or_nowhere_is_the_cause_of_the_others_time_out(meeting: Rendezvous) -> None:
    at_rendezvous: dict[str, Any] = {"dumped": False, "frames": JOINS, "wchan": "do_poll", "state": "X"}
    ended = [Rank(r, exit_code=1, ended_ns=SECOND_NS * (9 + r) // 9, log=TIMED_OUT, **at_rendezvous) for r in (0, 1, 3)]
    told = judge(msgspec.structs.replace(evidence(*ended), world_size=4, meeting=meeting)).verdicts[0]
    assert (told.cause, told.culprits, told.waiting) == ("init_missing", (2,), "0-1,3")


def test_where_the_others_may_be_on_other_nodes_nobody_is_named() -> None:
    assert _meeting(Rendezvous("10.0.0.1:29500"), 0, 1, 3).cause == "undecided"


def test_one_that_meets_at_another_port_is_named_from_either_side() -> None:
    here, there = "127.0.0.1:29500", "127.0.0.1:29501"
    told = _meeting(Rendezvous(here, (Apart(2, there),)), 0, 1, 3)
    assert (told.cause, told.culprits) == ("init_missing", (2,))
    assert f"meets at {there}, while ranks 0-1,3 wait at {here}" in told.summary
    apart = tuple(Apart(rank, here) for rank in (0, 1, 3))
    told = _meeting(Rendezvous(there, apart), 2)
    assert (told.cause, told.culprits) == ("init_missing", (2,))
    assert f"meets at {there}, while ranks 0-1,3 wait at {here}" in told.summary


def test_of_two_halves_the_one_without_rank_0_is_at_the_wrong_place() -> None:
    told = _meeting(Rendezvous("a:1", (Apart(2, "b:1"), Apart(3, "b:1"))), 0, 1)
    assert (told.cause, told.culprits) == ("init_missing", (2, 3))


# Most ranks make a process group, which those that went on were to make as well.

STEPS = loop(world(4), 5)
MAKES = (
    CodeFrame("_new_process_group_helper", _C10D, 2100),
    CodeFrame("_new_group_with_tag", _C10D, 5400),
    CodeFrame("new_group", _C10D, 5300),
    CodeFrame("<module>", "/srv/job/train.py", 60),
)
STARTS = (CodeFrame("init_process_group", _C10D, 1700), CodeFrame("<module>", "/srv/job/train.py", 9))


def _inside(rank: int, frames: tuple[CodeFrame, ...] = MAKES) -> Rank:
    return Rank(rank, STEPS, len(STEPS), frames=frames, wchan="do_poll", backend="gloo")


def _went_on(rank: int) -> Rank:
    return Rank(rank, (*STEPS, STEPS[0]), len(STEPS), backend="gloo")


def test_who_goes_on_without_the_group_that_the_others_make_is_named() -> None:
    verdict = judge(evidence(*(_inside(rank) for rank in range(3)), _went_on(3))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (3,), "likely")
    assert verdict.mismatch is not None and verdict.mismatch.expected == "new_group"
    assert verdict.ends_by_itself == "first_use"
    assert "members or not" in verdict.next_steps[0] and "train.py:60" in verdict.next_steps[0]


BARRIER = (CodeFrame("barrier", _C10D, 5030), CodeFrame("<module>", "/srv/job/train.py", 61))


@pytest.mark.parametrize(
    ("backend", "cause", "culprits"), [("nccl", "collective_mismatch", (3,)), ("gloo", None, None)]
)
def test_the_first_collective_of_a_group_waits_for_members_that_went_on(
    backend: str, cause: str | None, culprits: tuple[int, ...] | None
) -> None:
    """NCCL's recorder holds it once the group is connected; gloo's holds all, so that it must be another call there."""
    ranks = [Rank(rank, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None, backend=backend) for rank in range(3)]
    waits = Rank(3, (*STEPS, STEPS[0]), len(STEPS), backend=backend)
    verdict = judge(evidence(*ranks, waits)).verdicts[0]
    if cause is None:
        assert verdict.cause != "collective_mismatch"
        return
    assert (verdict.cause, verdict.culprits, verdict.confidence) == (cause, culprits, "possible")
    assert verdict.ends_by_itself == "first_use"
    assert "new_group" in verdict.next_steps[0] and "train.py:61" in verdict.next_steps[0]


@pytest.mark.parametrize(
    ("members", "cause", "culprits"),
    [((0, 1, 2, 3), "collective_mismatch", (3,)), ((0, 1, 2), "not_entered", (0, 1, 2))],
)
def test_who_went_on_is_not_to_blame_for_a_group_in_which_it_is_not(
    members: tuple[int, ...], cause: str, culprits: tuple[int, ...]
) -> None:
    """Groups of two in a ring: each enters first the one that its neighbour enters last, and rank 3 is in none."""
    ranks = [Rank(rank, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None) for rank in range(3)]
    found = evidence(*ranks, Rank(3, (*STEPS, STEPS[0]), len(STEPS)))
    told = tuple(_told_by_hook(rank, members) if rank.rank < 3 else rank for rank in found.ranks)
    verdict = judge(msgspec.structs.replace(found, ranks=told)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == (cause, culprits, "possible")


def _told_by_hook(
    rank: RankEvidence, members: tuple[int, ...], call: NamedCall | None = None, name: str | None = None
) -> RankEvidence:
    stacks = tuple(
        msgspec.structs.replace(
            look, threads=tuple(msgspec.structs.replace(thread, ident=77) for thread in look.threads)
        )
        for look in rank.stacks
    )
    scene = HookReport("scene-2.json", 2, None, (call,) if call else (), (GroupCall(members, "77", name),))
    return msgspec.structs.replace(rank, stacks=stacks, scenes=(scene,))


@pytest.mark.parametrize(
    ("given", "cause", "culprits"),
    [
        (((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3), (0, 3)), "group_order", (3,)),  # makes its second group first
        (((0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 3), (0, 2, 3)), "group_order", (0, 1, 2, 3)),  # as many as others
        (((0, 1), (0, 1), (2, 3), (2, 3)), "undecided", ()),  # each its own: what they lack is nowhere
        (((0, 1), (1, 2), (2, 3), (2, 3)), "undecided", ()),  # rank 1 is awaited by 0, and awaits another
        ((None, None, None, (0, 3)), "undecided", ()),
    ],
)
def test_ranks_that_make_each_other_s_groups_in_different_orders(
    given: tuple[tuple[int, ...] | None, ...], cause: str, culprits: tuple[int, ...]
) -> None:
    found = evidence(*(_inside(rank) for rank in range(4)))
    ranks = tuple(
        rank if members is None else _told_by_hook(rank, members)
        for rank, members in zip(found.ranks, given, strict=True)
    )
    verdict = judge(msgspec.structs.replace(found, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, culprits)
    assert "rendezvous" not in verdict.summary, "the job had communicated"
    if culprits:
        assert verdict.operation == "new_group" and "same order" in verdict.next_steps[0]


@pytest.mark.parametrize(
    ("names", "cause", "culprits"),
    [
        (("1", "1", "1", "2"), "group_order", (3,)),  # gloo connected its first group to the others' first, of others
        (("1", "1", "1", "1"), "undecided", ()),
        (("1", "1", "1", None), "undecided", ()),  # an older hook
    ],
)
def test_groups_of_the_same_members_by_two_names_are_two(
    names: tuple[str | None, ...], cause: str, culprits: tuple[int, ...]
) -> None:
    found = evidence(*(_inside(rank) for rank in range(4)))
    told = zip(found.ranks, names, strict=True)
    ranks = tuple(_told_by_hook(rank, (0, 1, 2, 3), name=name) for rank, name in told)
    verdict = judge(msgspec.structs.replace(found, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, culprits)
    if culprits:
        assert "rank 3 makes a group of ranks 0-3, group number 2 that it makes" in verdict.next_steps[0]


@pytest.mark.parametrize(
    ("names", "cause", "culprits"),
    [
        (("1", "1", "1", "2"), "group_order", (3,)),  # made it after another one
        (("1", "1", "2", "2"), "group_order", (0, 1, 2, 3)),
        (("1", "1", "1", "1"), "undecided", ()),
        (("1", "1", "1", None), "undecided", ()),  # an older hook
    ],
)
def test_a_group_that_ranks_know_by_other_names_connects_nowhere(
    names: tuple[str | None, ...], cause: str, culprits: tuple[int, ...]
) -> None:
    """With NCCL nobody waits as a group is made, but in its first call."""
    ranks = [Rank(rank, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None) for rank in range(4)]
    found = evidence(*ranks)
    told = tuple(_told_by_hook(rank, (0, 1, 2, 3), name=name) for rank, name in zip(found.ranks, names, strict=True))
    verdict = judge(msgspec.structs.replace(found, ranks=told)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, culprits)
    if culprits == (3,):
        assert (
            "rank 3 stands in the first call of a group of ranks 0-3 that torch calls 2 there" in verdict.next_steps[0]
        )


def test_who_stands_elsewhere_is_awaited_in_the_first_call_of_a_group() -> None:
    """No recorder holds the call of the others: with NCCL none does before the group is connected."""
    ranks = [Rank(rank, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None) for rank in (0, 1, 3)]
    verdict = judge(evidence(*ranks, Rank(2, STEPS, len(STEPS), frames=SLEEPS))).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "likely")


def test_of_two_in_one_first_call_who_lacks_in_a_recorded_one_is_named() -> None:
    """A mesh: ranks 0 and 2 stand in the world's first barrier, rank 1 waits for 3, and 3 for 2, which left one out."""
    pair, other = Group("1", "mesh_dp", (1, 3)), Group("2", "mesh_tp", (2, 3))
    found = evidence(
        Rank(0, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None),
        Rank(1, (*STEPS, Call(pair)), len(STEPS)),
        Rank(2, STEPS, len(STEPS), frames=BARRIER, state="R", wchan=None),
        Rank(3, (*STEPS, Call(other)), len(STEPS)),
    )
    verdict = judge(found).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (2,), "possible")


SENDS = (
    CodeFrame("isend", _C10D, 2552),
    CodeFrame("send", _C10D, 2627),
    CodeFrame("<module>", "/srv/job/train.py", 40),
)
RECEIVES = (
    CodeFrame("irecv", _C10D, 2597),
    CodeFrame("recv", _C10D, 2659),
    CodeFrame("<module>", "/srv/job/train.py", 35),
)


def test_who_connects_to_send_for_the_first_time_waits_as_the_others_do() -> None:
    """NCCL makes a communicator of the two before its recorder holds the transfer: nobody is elsewhere."""
    whole = world(4)
    ranks = [
        Rank(0, (transfer(whole, ("send", 1)),), 1, frames=BARRIER, state="R", wchan=None),
        Rank(1, (transfer(whole, ("recv", 0)),), 1, frames=SENDS, state="R", wchan=None),
        *(Rank(rank, (), 0, frames=RECEIVES, state="R", wchan=None) for rank in (2, 3)),
    ]
    found = evidence(*ranks)
    calls = {
        rank: NamedCall(function, True, peer, "77")
        for rank, function, peer in ((1, "isend", 2), (2, "irecv", 1), (3, "irecv", 2))
    }
    told = tuple(_told_by_hook(rank, (0, 1, 2, 3), calls.get(rank.rank)) for rank in found.ranks)
    verdict = judge(msgspec.structs.replace(found, ranks=told)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("undecided", ())
    assert verdict.waiting == "0-3"


def test_one_look_accuses_none_of_those_that_stand_in_it() -> None:
    """As on a crowded node: nothing tells yet whether they stand."""
    found = evidence(*(_inside(rank) for rank in range(3)), _went_on(3))
    once = tuple(msgspec.structs.replace(told, stacks=told.stacks[1:]) for told in found.ranks)
    verdict = judge(msgspec.structs.replace(found, ranks=once)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("collective_mismatch", (3,), "possible")


@pytest.mark.parametrize("inside", [1, 2])
def test_the_few_that_make_a_group_alone_are_those_that_the_others_wait_for(inside: int) -> None:
    ranks = [_inside(rank) if rank < inside else _went_on(rank) for rank in range(4)]
    verdict = judge(evidence(*ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("not_entered", tuple(range(inside)))


def test_a_start_is_none() -> None:
    verdict = judge(evidence(*(_inside(rank, STARTS) for rank in range(3)), _went_on(3))).verdicts[0]
    assert verdict.cause != "collective_mismatch"
