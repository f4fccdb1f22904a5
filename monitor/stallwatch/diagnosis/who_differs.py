"""Which members of a group are named where their calls differ, and how surely."""

from stallwatch.diagnosis.analysis import Analysis
from stallwatch.diagnosis.calls import align
from stallwatch.diagnosis.calls.align import Divergence
from stallwatch.diagnosis.calls.programs import place_of
from stallwatch.diagnosis.calls.sequences import SequenceBreak
from stallwatch.model.verdict import Confidence


def who_differs(analysis: Analysis, divergence: Divergence) -> tuple[tuple[int, ...], Confidence]:
    """Given where members called different things, return those to name, and how surely; nobody where nothing tells."""
    members = len(analysis.case.groups[divergence.group].ranks)
    departed = tuple(d.rank for d in analysis.departures if d.rank in analysis.case.streams[divergence.group])
    if divergence.decided_by == "threads":
        return (), "likely"
    if divergence.decided_by == "nothing":
        called = {rank for _, ranks in divergence.parts for rank in ranks}
        after = {left.rank for left in analysis.departures if _is_after(left, analysis, divergence)}
        departed = tuple(rank for rank in departed if rank not in after)
        return (departed, "likely") if departed and set(departed) < called else ((), "possible")
    whole = divergence.voters == members
    if divergence.decided_by == "majority":
        return divergence.culprits, "certain" if whole and 3 * len(divergence.culprits) <= members else "likely"
    left = divergence.decided_by in align.BY_NEW_LINES and departed and not set(departed) & set(divergence.culprits)
    # Who has not voted yet would tell which of two halves is right: by what the two called before, either may be.
    few = divergence.decided_by != "sisters" and not whole and 2 * len(divergence.culprits) >= divergence.voters
    if left or few:
        return (), "possible"  # another may have left what its peers do: in a first step all lines are new
    sure = whole and divergence.decided_by not in ("start", "site", "slip")
    return divergence.culprits, "likely" if sure else "possible"


def _is_after(departure: SequenceBreak, analysis: Analysis, divergence: Divergence) -> bool:
    """Whether a rank left its program only after the call under which the members differ: it tells nothing of that one,
    and its peers, which had called something else there, are no measure of what it called next."""
    place = place_of(analysis.case, departure.rank, divergence.group, divergence.seq)
    return place is not None and departure.place > place
