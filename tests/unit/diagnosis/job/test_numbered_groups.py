"""Groups without a description and of the same members, of which each rank has used one: torch's numbers tell them
apart, and hooks tell the members where no recorder does."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, Evidence
from stallwatch.model.hook_report import GroupCall, HookReport
from stallwatch.model.verdict import Verdict
from tests.builders.job import Call, Group, Rank, evidence, world

ALL = (0, 1, 2, 3)
STEPS = tuple(Call(world(4), line=10) for _ in range(6))
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
_MAIN = CodeFrame("<module>", "/srv/job/train.py", 99)
IN_CALL = (CodeFrame("all_reduce", _TORCH, 3252), CodeFrame("step", "/srv/job/train.py", 33), _MAIN)
AT_LOCK = (CodeFrame("step", "/srv/job/train.py", 31), _MAIN)


def _judged(names: tuple[str, ...], *, members_known: bool, told: bool, description: str = "undefined") -> Verdict:
    """Each rank waits in the first call of the group of that name; rank 2 stands at a lock, its thread waits."""
    ranks = []
    for rank, name in enumerate(names):
        call = Call(
            Group(name, description, ALL, int(name) if name.isdecimal() else 9), thread="2" if rank == 2 else ""
        )
        ranks.append(
            Rank(rank, (*STEPS, call), len(STEPS), frames=AT_LOCK if rank == 2 else IN_CALL, wchan="futex_do_wait",
                 backend="nccl" if members_known else "gloo", members_known=members_known)
        )  # fmt: skip
    case: Evidence = evidence(*ranks)
    if told:
        scenes = [(HookReport("scene-2.json", 2, None, (), (GroupCall(ALL, "77", name),)),) for name in names]
        case = replace(case, ranks=tuple(replace(r, scenes=s) for r, s in zip(case.ranks, scenes, strict=True)))
    return judge(case).verdicts[0]


@pytest.mark.parametrize(("members_known", "told"), [(True, False), (True, True), (False, True)])
def test_who_waits_in_another_group_of_all_has_not_entered_that_of_the_others(members_known: bool, told: bool) -> None:
    found = _judged(("1", "1", "2", "1"), members_known=members_known, told=told)
    assert (found.cause, found.culprits) in (("not_entered", (2,)), ("group_order", (2,))), found.summary
    assert "alike" not in found.summary


@pytest.mark.parametrize(("members_known", "told"), [(True, False), (False, True)])
def test_in_one_group_all_wait_alike(members_known: bool, told: bool) -> None:
    found = _judged(("1", "1", "1", "1"), members_known=members_known, told=told)
    assert (found.cause, found.culprits) == ("comm_stuck", ())


@pytest.mark.parametrize(
    ("names", "description"),
    [
        (("3f2a", "9c1b", "77aa", "0d0e"), "undefined"),  # each rank's own hash, of how many groups it is in
        (("5", "3", "7", "4"), "TENSOR_PARALLEL_GROUP"),
    ],
)
def test_names_that_each_rank_makes_by_itself_tell_no_groups_apart(names: tuple[str, ...], description: str) -> None:
    found = _judged(names, members_known=True, told=False, description=description)
    assert (found.cause, found.culprits) == ("comm_stuck", ())


def test_ranks_that_do_not_agree_on_a_group_s_members_tell_none() -> None:
    call = Call(Group("1", "undefined", ALL, 1))
    ranks = [Rank(r, (*STEPS, call), len(STEPS), frames=IN_CALL, backend="gloo", members_known=False) for r in range(3)]
    away = Rank(3, STEPS, len(STEPS), frames=AT_LOCK, backend="gloo", members_known=False)
    case = evidence(*ranks, away)
    parts = ((0, 1, 2), (0, 1, 2, 3), (0, 1, 2), (0, 1, 2))
    scenes = [(HookReport("scene-2.json", 2, None, (), (GroupCall(part, "77", "1"),)),) for part in parts]
    told = replace(case, ranks=tuple(replace(r, scenes=s) for r, s in zip(case.ranks, scenes, strict=True)))
    assert judge(told).verdicts[0].confidence != "certain"
