"""Groups that are made, or called for the first time: who does not come, and who makes them in another order."""

import msgspec
import pytest

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, RankEvidence
from stallwatch.model.hook_report import GroupCall, HookReport, NamedCall
from tests.builders.job import SLEEPS, Call, Group, Rank, evidence, loop, transfer, world

_C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
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
    ("name", "cause", "culprits"), [("3b64ef6bdae4", "collective_mismatch", (1,)), ("7", "not_entered", (0, 2))]
)
def test_of_a_group_that_its_members_alone_make_the_member_that_went_on_is_named(
    name: str, cause: str, culprits: tuple[int, ...]
) -> None:
    """new_group(use_local_synchronization=True), which torch names by a hash: rank 3 is none of its members. Every rank
    must come to one with a number."""
    makers = [Rank(rank, STEPS, len(STEPS), frames=MAKES, wchan="futex_do_wait") for rank in (0, 2)]
    found = evidence(*makers, *(Rank(rank, (*STEPS, STEPS[0]), len(STEPS)) for rank in (1, 3)))
    ranks = tuple(_told_by_hook(one, (0, 1, 2), name=name) if one.rank in (0, 2) else one for one in found.ranks)
    verdict = judge(msgspec.structs.replace(found, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == (cause, culprits)
    assert verdict.confidence != "certain"


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


def test_members_that_know_the_group_that_they_make_alone_by_two_hashes_are_all_alike() -> None:
    """new_group(use_local_synchronization=True): torch's hash counts the groups that a rank made before, and rank 1 is
    in one that the others are not in. None of them makes anything in another order (live, torch 2.14.1)."""
    makers = [_inside(rank) for rank in (1, 2, 3)]
    found = evidence(_went_on(0), *makers)
    names = (None, "3b64ef6bdae4", "77e0aa01c5d2", "77e0aa01c5d2")
    ranks = tuple(
        _told_by_hook(rank, (1, 2, 3), name=name) if name else rank
        for rank, name in zip(found.ranks, names, strict=True)
    )
    verdict = judge(msgspec.structs.replace(found, ranks=ranks)).verdicts[0]
    assert (verdict.cause, verdict.culprits) == ("group_order", (1, 2, 3))
    assert "use_local_synchronization" in verdict.next_steps[0] and "same order" not in verdict.next_steps[0]
    assert "rank 1 makes a group of ranks 1-3 by the name 3b64ef6b" in verdict.next_steps[0]
    assert "train.py:60" in verdict.summary


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


def test_one_that_begins_anew_while_the_others_train_is_not_told_to_make_its_groups_in_their_order() -> None:
    """A supervisor started rank 2 again, alone; the others are in the twelfth collective of the world that was."""
    w4 = world(4)
    calls = (*loop(w4, 5), Call(w4))
    others = [Rank(r, calls, len(calls) - 1) for r in (0, 1, 3)]
    anew = Rank(2, frames=STARTS, wchan="futex_do_wait", dumped=False)
    verdict = judge(evidence(*others, anew)).verdicts[0]
    assert (verdict.cause, verdict.culprits, verdict.where) == ("not_entered", (2,), "init")
    assert "begins anew" in verdict.next_steps[0]
    assert not any("new_group" in step for step in verdict.next_steps)
    late = judge(evidence(*(Rank(r, frames=STARTS, wchan="do_poll", dumped=False) for r in (0, 1, 3)), anew)).verdicts
    assert not any("anew" in step for step in late[0].next_steps), "nobody has trained"
