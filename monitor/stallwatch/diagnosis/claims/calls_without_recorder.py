"""Who called what, where no recorder tells: by NCCL's counts, by stacks or by hooks alone."""

import re
from collections.abc import Sequence

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, common_where, group_name, named, waiting_facts
from stallwatch.diagnosis.job.ras_launches import launched_other, ranks_awaited
from stallwatch.diagnosis.waits.graph import Point
from stallwatch.formats.rank_ranges import verb
from stallwatch.model.verdict import Fact, Frame, Mismatch

# Where all stand in communication: NCCL's own counts say that a few have launched less than the others, or something
# else. A rank whose stack stands still launches nothing more: the counts stand as well.

_RAS = "NCCL RAS"
_WHICH_CALL = ("which call of each rank it is: stallwatch.attach() lets the flight recorder be read",)


def launched_less(analysis: Analysis) -> Saying:
    """Who has launched less than most of a communicator, and itself waits for nobody that launched less still."""
    case, lines = analysis.case, analysis.by_stacks_alone
    if not (analysis.hangs and lines):
        return None
    # Who stands at the line of most has come as far in the loop as they, and launches as much. Who stands at another
    # may have less only because its host waits for the GPU there.
    most_at = next(iter(lines.values()))
    behind = sorted(ranks_awaited(case.launches, most_at) if 2 * len(most_at) > len(case.observed) else ())
    if alike := bool(behind):
        compared = most_at
    else:
        behind, compared = sorted(ranks_awaited(case.launches, case.observed)), list(case.observed)
    if not behind or 2 * len(behind) >= len(compared):
        return _launched_other(analysis)
    counts = next(each for each in case.launches if behind[0] in each)
    most = max(sum(number for _, number in counts[rank]) for rank in compared if rank in counts)
    mine = min(sum(number for _, number in counts[rank]) for rank in behind if rank in counts)
    has = verb(behind, "has", "have")
    fact = Fact(
        f"{named(behind)} {has} launched {mine} collectives of a communicator in which others launched {most}", _RAS
    )
    return Claim(
        cause="not_entered",
        culprits=tuple(behind),
        confidence="likely" if alike or len(lines) == 1 else "possible",
        because=(fact, *waiting_facts(analysis), *activity_facts(analysis, behind)),
        where=common_where(analysis, behind),
        missing=_WHICH_CALL,
        told=f"{has} launched {mine} collectives, by NCCL's own count, where others launched {most}",
        steps=(
            f"Compare the path of {named(behind)} with another's: it left a call out. Look for a branch on the rank or "
            "its data, an early `continue`, an exception that is caught.",
        ),
    )


def _launched_other(analysis: Analysis) -> Claim | None:
    other = launched_other(analysis.case.launches)
    if other is None:
        return None
    found, expected = _torch_name(other.found), _torch_name(other.expected)
    has = verb(other.ranks, "has", "have")
    fact = Fact(f"{named(other.ranks)} {has} launched {found} once where the others launched {expected}", _RAS)
    return Claim(
        cause="collective_mismatch",
        culprits=other.ranks,
        confidence="likely",
        because=(fact, *waiting_facts(analysis), *activity_facts(analysis, other.ranks)),
        where="collective",
        mismatch=Mismatch("op", expected, found),
        operation=expected,
        missing=_WHICH_CALL,
    )


def _torch_name(operation: str) -> str:
    """torch's name of what NCCL calls AllReduce."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()


# By stacks alone: every rank stands in a collective, and a few of them at another call than most.


def called_elsewhere(analysis: Analysis) -> Saying:
    """No recorder was read: who stands in another collective than most, or at another line, has called something else,
    where there are no more than these two places."""
    case = analysis.case
    most, few = [*analysis.by_stacks_alone.values(), [], []][:2]
    if not analysis.hangs or not few or len(analysis.by_stacks_alone) > 2 or len(most) <= len(few):
        return None
    if analysis.in_the_one_call == set(most) and all(case.activity(rank).place.where == "store" for rank in few):
        return _wait_for_a_key(analysis, few, most)
    calls = [{case.activity(rank).call.collective for rank in ranks} for ranks in (most, few)]
    found_in = [case.activity(rank) for rank in case.observed]
    # Stages of a pipeline stand at lines of their own by design; who makes a group waits for whoever comes.
    if any(activity.place.in_store_or_init or activity.call.is_transfer for activity in found_in):
        return None
    if any(len(names) > 1 or None in names for names in calls):
        return None
    (expected,), (found,) = calls
    assert expected is not None
    assert found is not None
    stands = verb(few, "stands", "stand")
    groups = [_group_given(case.activity(ranks[0]).place.frame) for ranks in (few, most)]
    # One operation, called from two lines, would have ended in one group.
    apart = expected == found and "" not in groups and groups[0] != groups[1]
    of = [f" of {group}" if apart else "" for group in groups]
    here, there = f"{named(few)} {stands} in {found}{of[0]}", f"{named(most)}, in {expected}{of[1]}"
    return Claim(
        cause="group_order" if apart else "collective_mismatch",
        culprits=tuple(sorted(few)),
        confidence="possible",
        because=(
            Fact(f"{here} at another line than {there}", "py-spy"),
            *waiting_facts(analysis),
            *activity_facts(analysis, few),
        ),
        where="collective",
        mismatch=Mismatch("op", expected, found) if expected != found else None,
        operation=expected,
        missing=("what each rank called last: stallwatch.attach() lets the flight recorder be read",),
        ends_by_itself="first_use",  # of another group, which makes its members wait for each other
    )


def _wait_for_a_key(analysis: Analysis, few: Sequence[int], most: Sequence[int]) -> Claim:
    """They wait in the store, by a call of their own that makes no group: for a key that none of the others can set."""
    waits = verb(few, "waits", "wait")
    return Claim(
        cause="not_entered",
        culprits=tuple(sorted(few)),
        confidence="possible",
        because=(
            Fact(f"{named(few)} {waits} in the store, and {named(most)} in the one collective", "py-spy"),
            *waiting_facts(analysis),
            *activity_facts(analysis, few),
        ),
        where="store",
        operation=analysis.case.activity(most[0]).call.collective,
    )


_GROUP_GIVEN = re.compile(r"\b(?:process_)?group\s*=\s*([^,()]+)")


def _group_given(frame: Frame | None) -> str:
    """How the line of a call names its group, "" where it does not."""
    found = _GROUP_GIVEN.search((frame.source or "") if frame else "")
    return found[1].strip() if found else ""


# Members of a group wait in one rooted collective and name different roots: each waits for another's data. No recorder
# holds the root; the ranks' own hooks tell which one their call names.


def roots_differ(analysis: Analysis) -> Saying:
    """Members wait in one rooted collective and named different roots."""
    if not analysis.hangs:
        return None
    for point in sorted(analysis.graph.blockers):
        roots = _named_roots(analysis, point)
        if len(set(roots.values())) > 1:
            return _of_roots(analysis, point, roots)
    return None


def _named_roots(analysis: Analysis, point: Point) -> dict[int, int]:
    """Which root each waiting rank names in what it waits in there."""
    roots: dict[int, int] = {}
    for wait in analysis.graph.waits:
        said = analysis.case.activity(wait.rank).call.named_call
        call = analysis.case.call(wait.rank, wait.pending)
        if wait.point != point or said is None or said.is_transfer or said.rank is None or call is None:
            continue
        if said.function in call.operation:
            roots[wait.rank] = said.rank
    return roots


def _of_roots(analysis: Analysis, point: Point, roots: dict[int, int]) -> Claim:
    expected = _right_root(roots)
    culprits = () if expected is None else tuple(sorted(rank for rank, root in roots.items() if root != expected))
    asked = analysis.case.activity((culprits or sorted(roots))[0]).call.named_call
    assert asked is not None
    function, sides = asked.function, dict[int, tuple[int, ...]]()
    for root in sorted(set(roots.values())):
        sides[root] = tuple(sorted(rank for rank, said in roots.items() if said == root))
    facts = tuple(
        Fact(
            f"{named(ranks)} called {function} #{point.seq} of "
            f"{group_name(analysis.case, analysis.case.groups[point.group])} with rank {root} as its root",
            f"hook of {named(ranks)}",
        )
        for root, ranks in sides.items()
    )
    parts = tuple((ranks, f"{function} with root {root}", "") for root, ranks in sides.items())
    words = (expected, roots[culprits[0]]) if culprits else tuple(sides)[:2]
    return Claim(
        cause="collective_mismatch",
        culprits=culprits,
        confidence="likely" if culprits else "possible",
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="collective",
        mismatch=Mismatch("op", *(f"{function} with root {root}" for root in words)),
        group=point.group,
        operation=function,
        seq=point.seq or None,
        parts=() if culprits else parts,
    )


def _right_root(roots: dict[int, int]) -> int | None:
    """The root that most name; of equal numbers the one that is itself there as the root. None: nothing tells."""
    counts = {root: sum(other == root for other in roots.values()) for root in roots.values()}
    most = [root for root, count in counts.items() if count == max(counts.values())]
    there = [root for root in most if roots.get(root) == root]
    for found in (most, there):
        if len(found) == 1:
            return found[0]
    return None
