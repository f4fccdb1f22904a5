"""Where ranks of a job that still moves have parted, by what each called and from which line: before anybody waits for
ever."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from stallwatch.diagnosis.calls.align import Divergence, describe, find_divergences
from stallwatch.diagnosis.calls.step_counts import LEAST_RANKS
from stallwatch.diagnosis.job.case import Case
from stallwatch.diagnosis.job.groups import GroupStream, all_alike
from stallwatch.model.summary import Call, RankSummary

_MEMBERS_COMPARED = 1024  # each costs a look at every one of its lines
_SHIFTED = 8  # calls in a row that must agree one place off, and not in place
_SETTLED = 4  # calls before it that must agree in place


class Drift(msgspec.Struct, frozen=True):
    """Where members of a group stopped calling the same thing, though nobody waits yet."""

    description: str
    ranks: tuple[int, ...]
    seq: int
    culprits: tuple[int, ...]  # () where nothing tells who differs
    kind: Literal["op", "size", "dtype", "count"]
    reason: str  # a sentence
    shift: int = 0  # of "count": 1 is a call too few, -1 one too many
    backend: str = ""
    expected: Call | None = None
    found: Call | None = None
    sure: bool = True  # False: a guess by what the group did before


def find_drift(summaries: Sequence[RankSummary], world_size: int | None) -> tuple[Drift, ...]:
    """Given samples of ranks, taken about the same time, return where they have parted: at most one place a group."""
    case = Case(summaries, {}, world_size)
    # One that somebody still waits in is a hang, or a call that was only just made.
    parted = {divergence.group: divergence for divergence in find_divergences(case) if not divergence.open}
    found = [_of_divergence(case, divergence) for divergence in parted.values()]
    for group in case.groups:
        if group.index not in parted:
            found += one_off(case, group.index)
    return tuple(sorted(found, key=lambda drift: (drift.description, drift.seq)))


def _of_divergence(case: Case, divergence: Divergence) -> Drift:
    group = case.groups[divergence.group]
    known = divergence.decided_by != "nothing"
    who = f"rank {divergence.culprits[0]}" if known and len(divergence.culprits) == 1 else "some ranks"
    return Drift(
        group.description,
        group.ranks,
        divergence.seq,
        divergence.culprits if known else (),
        divergence.kind,
        f"under #{divergence.seq} of {group.description or 'the default group'} {who} called "
        f"{describe(divergence.found)} where the others called {describe(divergence.expected)}; the job still moves",
        backend=group.backend,
        expected=divergence.expected,
        found=divergence.found,
        sure=divergence.decided_by == "majority",
    )


def one_off(case: Case, group: int) -> list[Drift]:
    """Equal calls that come from other lines from some number on: one place earlier or later than with the others.

    Groups of more than some thousand members are compared only as far as all their calls are the same.
    """
    description = case.groups[group].description
    found = []
    for rank, seq, lines, usual in apart_by_lines(case.streams[group]):
        if any(lines.get(n) != usual.get(n) for n in range(seq - _SETTLED, seq)):
            continue
        for shift, what in ((1, "one call too few"), (-1, "one call too many")):
            pairs = [(lines.get(n), usual.get(n + shift)) for n in range(seq + (shift < 0), seq + _SHIFTED)]
            if all(mine is not None and mine == theirs for mine, theirs in pairs):
                where = describe_site(usual[seq]) if shift > 0 else describe_site(lines[seq])
                reason = (
                    f"rank {rank} made {what} in {description or 'the default group'}, at #{seq} ({where}): since then "
                    "its calls pair with the wrong ones of the others; the job still moves"
                )
                found.append(Drift(description, case.groups[group].ranks, seq, (rank,), "count", reason, shift))
                break
    return found


class ApartByLines(NamedTuple):
    """A member of at least three, and the first number that it called from another line than most of them."""

    rank: int
    seq: int
    lines: Mapping[int, str]  # by number
    usual: Mapping[int, str]  # of most members, by number


def apart_by_lines(members: Mapping[int, GroupStream]) -> list[ApartByLines]:
    """Given the members of a group, of some thousand at most, return those that parted from the others by their
    lines."""
    if len(members) > _MEMBERS_COMPARED or all_alike(members):
        return []
    sites = {rank: lines for rank, member in sorted(members.items()) if (lines := _sites(member))}
    if len(sites) < LEAST_RANKS:
        return []
    usual = _usual(sites)
    firsts = (
        (rank, next((n for n in sorted(lines) if n in usual and lines[n] != usual[n]), None), lines)
        for rank, lines in sites.items()
    )
    return [ApartByLines(rank, seq, lines, usual) for rank, seq, lines in firsts if seq is not None]


def _sites(member: GroupStream) -> dict[int, str]:
    """Where each number was called from; {} when call sites were not recorded."""
    first = member.stream.first_seq
    calls = {first + i: member.call_at(first + i) for i in range(len(member.stream.calls) // 2)}
    return {seq: call.site for seq, call in calls.items() if call is not None and call.site}


def _usual(sites: Mapping[int, Mapping[int, str]]) -> dict[int, str]:
    """The line that most members called each number from, where most of them agree."""
    votes: dict[int, dict[str, int]] = {}
    for lines in sites.values():
        for seq, site in lines.items():
            counts = votes.setdefault(seq, {})
            counts[site] = counts.get(site, 0) + 1
    usual = {}
    for seq, counts in votes.items():
        site = max(counts, key=lambda s: (counts[s], s))
        if 2 * counts[site] > sum(counts.values()):
            usual[seq] = site
    return usual


def describe_site(site: str) -> str:
    """A call's line as people read it: without its folders."""
    return site.rsplit("/", 1)[-1]
