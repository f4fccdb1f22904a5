"""Members of a group wait in one rooted collective and name different roots: each waits for another's data.

No recorder holds the root; the ranks' own hooks tell which one their call names.
"""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.claim import Claim, Saying, activity_facts, group_name, named, waiting_facts
from stallwatch.diagnosis.waits.graph import Point
from stallwatch.model.verdict import Fact, Mismatch


def claim(analysis: Analysis) -> Saying:
    """Members wait in one rooted collective and named different roots."""
    if not analysis.hangs:
        return None
    for point in sorted(analysis.graph.blockers):
        roots = _roots(analysis, point)
        if len(set(roots.values())) > 1:
            return _claim(analysis, point, roots)
    return None


def _roots(analysis: Analysis, point: Point) -> dict[int, int]:
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


def _claim(analysis: Analysis, point: Point, roots: dict[int, int]) -> Claim:
    expected = _right(roots)
    culprits = tuple(sorted(rank for rank, root in roots.items() if root != expected))
    sure = expected is not None
    operation = analysis.case.activity(culprits[0]).call.named_call
    assert operation is not None
    found = roots[culprits[0]]
    facts = tuple(
        Fact(
            f"{named(ranks)} called {operation.function} #{point.seq} of "
            f"{group_name(analysis.case, analysis.case.groups[point.group])} with rank {root} as its root",
            f"hook of {named(ranks)}",
        )
        for root in sorted(set(roots.values()))
        if (ranks := sorted(rank for rank, said in roots.items() if said == root))
    )
    words = ("another root" if expected is None else f"root {expected}", f"root {found}")
    return Claim(
        cause="collective_mismatch",
        culprits=culprits,
        confidence="likely" if sure else "possible",
        because=(*facts, *waiting_facts(analysis), *activity_facts(analysis, culprits)),
        where="collective",
        mismatch=Mismatch("op", *(f"{operation.function} with {word}" for word in words)),
        group=point.group,
        operation=operation.function,
        seq=point.seq or None,
    )


def _right(roots: dict[int, int]) -> int | None:
    """The root that most name; of equal numbers the one that is itself there as the root. None: nothing tells."""
    counts = {root: sum(other == root for other in roots.values()) for root in roots.values()}
    most = [root for root, count in counts.items() if count == max(counts.values())]
    there = [root for root in most if roots.get(root) == root]
    for found in (most, there):
        if len(found) == 1:
            return found[0]
    return None
