"""Who stands in a call that no recorder holds may wait for whoever is not seen in that very call."""

import pytest
from msgspec.structs import replace

from stallwatch.diagnosis import judge
from stallwatch.model.evidence import CodeFrame, RankEvidence
from stallwatch.model.hook_report import GroupCall, HookReport
from tests.builders.job import IN_RECV, SLEEPS, Call, Group, Rank, evidence

PAIRS = (Group("1", "dp0", (0, 1), 1), Group("2", "dp1", (2, 3), 2))
WORLD = (0, 1, 2, 3)
_TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
Frames = tuple[CodeFrame, ...]
Members = tuple[int, ...] | None


def inside(function: str = "all_reduce", line: int = 10) -> Frames:
    return (CodeFrame(function, _TORCH, 3000), CodeFrame("step", "/srv/job/train.py", line), *SLEEPS[-1:])


def _told(rank: RankEvidence, members: Members) -> RankEvidence:
    """With what its hook says of the group that the call was given."""
    if members is None:
        return rank
    return replace(rank, scenes=(HookReport("scene-2.json", 2, None, (), (GroupCall(members, ""),)),))


def _judged(own: Frames, others: Frames, members: tuple[Members, Members] = (None, None)) -> tuple[str, list[int]]:
    """Rank 1 waits for rank 0 in their pair; that one stands in `own`, ranks 2 and 3 in `others`, of which no recorder
    tells."""
    steps = {rank: (Call(PAIRS[rank // 2]),) * 6 for rank in WORLD}
    ranks = evidence(
        Rank(0, steps[0], frames=own),
        Rank(1, (*steps[1], steps[1][0]), 6, frames=inside(line=77)),
        *(Rank(rank, steps[rank], frames=others) for rank in (2, 3)),
    )
    of = {0: members[0], 2: members[1], 3: members[1]}
    verdict = judge(replace(ranks, ranks=tuple(_told(rank, of.get(rank.rank)) for rank in ranks.ranks))).verdicts[0]
    return verdict.cause, list(verdict.culprits)


@pytest.mark.parametrize(
    ("others", "members"),
    [
        (inside(), (None, None)),  # at one line
        (inside(), (None, WORLD)),
        (inside(line=50), (WORLD, WORLD)),  # at two, of one group
    ],
)
def test_all_others_in_the_same_call_leave_one_who_has_not_come(
    others: Frames, members: tuple[Members, Members]
) -> None:
    assert _judged(inside(), others, members) == ("not_entered", [0])


@pytest.mark.parametrize(
    ("own", "others", "members"),
    [
        (inside(), inside("all_gather"), (None, None)),  # another operation at that line
        (inside(), inside(line=50), (None, None)),  # another line, and nobody tells the groups
        (inside(), inside(line=50), (WORLD, None)),
        (inside(), inside(line=50), (None, WORLD)),
        (inside(), inside(), (WORLD, (2, 3))),  # one line, which several groups come through
        (IN_RECV, inside(), (None, None)),
        (IN_RECV, IN_RECV, (None, None)),  # each may wait for a message of another
    ],
)
def test_others_in_another_call_may_be_whom_it_waits_for(
    own: Frames, others: Frames, members: tuple[Members, Members]
) -> None:
    assert _judged(own, others, members)[1] == []
