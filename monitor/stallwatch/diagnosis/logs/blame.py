"""Who is to blame by what torch prints of collectives: for the waits of watchdogs who was absent, in another operation,
silent, or nobody; for a mismatch that the DETAIL wrapper refused what differs, and on whom."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from stallwatch.diagnosis.logs.logged_failure import LoggedFailure
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.diagnosis.logs.watchdog_reports import GroupReading, Waiter
from stallwatch.formats.operation_names import operation_name
from stallwatch.formats.rank_ranges import named_ranks, verb
from stallwatch.model.log_event import SideOfMismatch
from stallwatch.model.verdict import Mismatch

# In health some ranks of these may be done while others wait: a root need not wait for its receivers, or they for it.
_ROOTED = ("BROADCAST", "SCATTER", "REDUCE", "GATHER")
# Every member brings as much: another size is another call. All-to-all, gathers of lists and coalesced calls may
# differ.
_EVEN = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER_BASE", "REDUCE_SCATTER_BASE")
_NOT_NUMBERED_ALIKE = ("SEND", "RECV", "COALESCED", "UNKNOWN", "")


class Blame(NamedTuple):
    """`kind`: "absent" enqueued less than others wait in; "silent" printed nothing though all others did; "mismatch"
    called something else; "cleared": silent as well, and perhaps all of a node, whose agent takes the others away with
    the one that dies; "stuck": all members wait alike."""

    kind: Literal["absent", "silent", "cleared", "mismatch", "stuck", "unknown"]
    ranks: tuple[int, ...]
    group: GroupReading
    waiting: tuple[int, ...]
    seq: int
    operation: str
    sure: bool  # False: the members of the group are guessed, a majority decides, or who is silent may have come
    parts: tuple[tuple[str, tuple[int, ...]], ...] = ()  # of a mismatch: what was called, and by whom
    differs: Literal["op", "size", "count"] = "op"

    @property
    def called(self) -> tuple[tuple[tuple[int, ...], str, str], ...]:
        """The parts of a mismatch with their ranks first: who, what, and no place."""
        of_size = f"{operation_name(self.operation)} of " if self.differs == "size" else ""
        sized = ((ranks, f"{of_size}{what}" if what.endswith(" elements") else what, "") for what, ranks in self.parts)
        return tuple(sized)


def find_blame(
    groups: Sequence[GroupReading],
    world: Iterable[int] = (),
    with_log: Iterable[int] = (),
    spoke: Iterable[int] = (),
) -> Blame | None:
    """Given what is told of each group, the ranks that are known to be in the job, those whose own logs were read and
    those that told of an end of their own, say what explains the waits."""
    usable = [group for group in groups if group.waiters and group.comparable]
    absent = _follow(usable)
    if absent is not None:
        return absent
    for group in usable:
        if (found := _mismatch(group)) is not None:
            return found
    known = tuple(sorted({*world, *with_log}))
    read = frozenset(with_log)
    told = frozenset(spoke)
    silent = [found for group in usable if (found := _silent(group, groups, known, read, told)) is not None]
    if silent:
        return min(silent, key=lambda found: (len(found.ranks), not found.sure, found.group.key))
    stuck = [found for group in usable if (found := _stuck(group, known)) is not None]
    return min(stuck, key=lambda found: (found.kind != "stuck", -len(found.waiting), found.group.key), default=None)


def _follow(groups: Sequence[GroupReading]) -> Blame | None:
    """Absent by number. Who is absent because it waits in another group is not to blame: that group's absent are."""
    elsewhere: dict[int, list[GroupReading]] = {}
    for group in groups:
        for rank in group.waiters:
            elsewhere.setdefault(rank, []).append(group)
    roots: dict[tuple[str, str], tuple[GroupReading, list[int]]] = {}
    for group in groups:
        free = [rank for rank in group.absent() if not any(other is not group for other in elsewhere.get(rank, ()))]
        if free and len(free) == len(group.absent()):
            roots[group.key] = group, free
    if not roots:
        return None
    group, ranks = min(roots.values(), key=lambda root: (-len(root[0].waiters), root[0].key))
    waited = group.waited_in_vain
    assert waited is not None
    operation = next((w.operation for w in group.waiters.values() if w.seq == waited and w.operation), "")
    waiting = sorted({rank for one in groups for rank in one.waiters} - set(ranks))
    return Blame("absent", tuple(ranks), group, tuple(waiting), waited, operation, sure=True)


def _mismatch(group: GroupReading) -> Blame | None:
    waiters = [waiter for waiter in group.waiters.values() if waiter.operation not in _NOT_NUMBERED_ALIKE]
    by_seq: dict[int, list[Waiter]] = {}
    for waiter in waiters:
        by_seq.setdefault(waiter.seq, []).append(waiter)
    for seq in sorted(by_seq):
        of_seq = by_seq[seq]
        operations = {waiter.operation for waiter in of_seq}
        if len(operations) > 1:
            return _partition(group, of_seq, seq, {w.rank: _name(w) for w in of_seq}, "op", same_number=True)
        even = of_seq[0].operation.strip("_") in _EVEN
        sizes = {(w.numel_in, w.numel_out) for w in of_seq if w.numel_in is not None}
        if even and len(sizes) > 1:
            said = {w.rank: f"{w.numel_in} elements" for w in of_seq if w.numel_in is not None}
            return _partition(group, waiters, seq, said, "size", same_number=True)
    if len(by_seq) < 2:
        return None
    # A call that all must enter has ended for those that wait further on, and not for these: theirs is another one.
    # Who did not wait in vain, but whose communicator broke, may have been the last in a call that the others left.
    lowest = min(by_seq)
    waited_in_vain = any(waiter.event.kind != "collective_broke" for waiter in by_seq[lowest])
    if by_seq[lowest][0].operation.strip("_") in _ROOTED or not waited_in_vain:
        return None
    said = {w.rank: f"{_name(w)} number {w.seq}" for w in waiters}
    return _partition(group, waiters, lowest, said, "count", same_number=False)


def _partition(
    group: GroupReading,
    waiters: Sequence[Waiter],
    seq: int,
    said: Mapping[int, str],
    differs: Literal["op", "size", "count"],
    *,
    same_number: bool,
) -> Blame:
    said = {**{w.rank: f"{_name(w)} number {w.seq}" for w in waiters}, **said}
    of_call: dict[str, list[int]] = {}
    for rank, what in sorted(said.items()):
        of_call.setdefault(what, []).append(rank)
    parts = tuple(
        (what, tuple(ranks)) for what, ranks in sorted(of_call.items(), key=lambda item: (-len(item[1]), item[1]))
    )
    others = len(said) - len(parts[0][1])
    # A majority is a hint; none names anybody. Where nothing names the group, the few may stand in another one, as they
    # do where anybody stands under another number: each group counts by itself. So may one alone, whose mates were
    # cleared away before they spoke, unless every rank has told where it stands: then it has no mates.
    is_named = group.key != ("", "")
    one_number = all(waiter.seq == seq for waiter in group.waiters.values())
    alone = others == 1 and len(group.waiters) > max(group.waiters) and one_number
    few = len(said) > 2 and (3 if is_named else 6) * others <= len(said) and (is_named or alone)
    culprits = tuple(sorted(rank for _, ranks in parts[1:] for rank in ranks)) if few else ()
    operation = next(w.operation for w in waiters if w.rank in parts[0][1])
    waiting = tuple(sorted(rank for rank in said if rank not in culprits))
    return Blame("mismatch", culprits, group, waiting, seq, operation, same_number, parts, differs)


def _silent(
    group: GroupReading,
    groups: Sequence[GroupReading],
    world: Sequence[int],
    with_log: frozenset[int],
    spoke: frozenset[int],
) -> Blame | None:
    """Members that printed nothing, where all others wait in one operation. A rank whose log was not given is no silent
    one: it must have one of its own, or the log of those that wait must be one that it writes to. Nor where Ray counts
    some without their ranks, nor where nothing names the group: torch up to 2.1, which does not, aborts at once, and
    others are cleared away before they speak; as they are where a communicator broke."""
    waited = group.waited if group.key != ("", "") and not group.broke and not group.folded else None
    at = [w for w in group.waiters.values() if w.seq == waited]
    behind_root = [w for w in group.waiters.values() if w.seq != waited]
    if not all(waiter.operation for waiter in group.waiters.values()):
        return None  # their first words are lost: the others' may be, too
    if waited is None or (behind_root and not all(w.operation.strip("_") in _ROOTED for w in at)):
        return None
    members, sure = group.members(world)
    heard = {rank for other in groups for rank in other.heard}
    silent = sorted(set(members) - heard)
    if not silent or len(silent) >= len(group.waiters) or spoke.intersection(silent):
        return None
    if not with_log.issuperset(silent) and not (group.goes_on and _shares_a_log(silent, groups)):
        return None
    if group.begins and not with_log.issuperset(silent) and (len(silent) > 1 or silent[0] in group.written):
        return None
    kind: Final = "cleared" if _may_be_nodes(silent, len(world or members)) else "silent"
    # The root of a broadcast sends and waits for nobody: it may have come and gone, and what it sent be stuck.
    may_have_left = any(waiter.operation.strip("_") in _ROOTED for waiter in at)
    waiting = tuple(sorted(group.waiters))
    return Blame(kind, tuple(silent), group, waiting, waited, at[0].operation, sure and not may_have_left)


def _may_be_nodes(ranks: Sequence[int], world: int) -> bool:
    """Whether ranks, ascending, make up one node or several: torchrun and srun count on from node to node."""
    sizes = (size for size in range(2, len(ranks) + 1) if world % size == len(ranks) % size == 0 and size < world)
    return any(
        all(ranks[at] % size == 0 and ranks[at + size - 1] == ranks[at] + size - 1 for at in range(0, len(ranks), size))
        for size in sizes
    )


def _shares_a_log(ranks: Sequence[int], groups: Sequence[GroupReading]) -> bool:
    sources: dict[str, set[int]] = {}
    for group in groups:
        for source, writers in group.sources.items():
            sources.setdefault(source, set()).update(writers)
    shared = [writers for writers in sources.values() if len(writers) > 1]
    if len(sources) == 1:
        return bool(shared)
    return all(any(min(writers) < rank < max(writers) for writers in shared) for rank in ranks)


def _stuck(group: GroupReading, world: Sequence[int]) -> Blame | None:
    waited = group.waited
    if waited is None:
        return None
    alike = {(w.seq, w.operation) for w in group.waiters.values()}
    operation = next((w.operation for w in group.waiters.values() if w.operation), "")
    members, sure = group.members(world)
    whole = sure and group.size is not None and set(members) == set(group.waiters) and len(alike) == 1
    waiting = tuple(sorted(group.waiters))
    return Blame("stuck" if whole else "unknown", (), group, waiting, waited, operation, whole)


def _name(waiter: Waiter) -> str:
    return operation_name(waiter.operation)


def partition_text(blame: Blame) -> str:
    """ "ranks 0-2 called all_reduce number 7559, rank 3 broadcast number 7561"."""
    return ", ".join(
        f"{named_ranks(ranks)} {'' if place else 'called '}{what}"
        for place, (ranks, what, _) in enumerate(blame.called)
    )


# torch's DETAIL wrapper, rank by rank: each rank prints itself and one that differs; what differs, and what to do.

Sides = Mapping[int, SideOfMismatch]


def detail_sides(told: Iterable[LoggedFailure]) -> dict[int, SideOfMismatch]:
    """Given the wrapper's lines, return what each rank was in; the lowest number that it is said to be in."""
    sides: dict[int, SideOfMismatch] = {}
    for one in told:
        for side in one.event.sides:
            known = sides.get(side.rank)
            if known is None or (side.seq or 0) < (known.seq or 0):
                sides[side.rank] = side
    return sides


def few_that_differ(sides: Sides) -> tuple[int, ...]:
    """The few that differ from most; nobody where there is no clear majority."""
    counts = Counter(_call(side) for side in sides.values())
    if not counts:
        return ()
    call, most = counts.most_common(1)[0]
    others = tuple(sorted(rank for rank, side in sides.items() if _call(side) != call))
    return others if len(sides) > 2 and 3 * (len(sides) - most) <= len(sides) else ()


def what_differs(sides: Sides) -> Mismatch | None:
    """What differs: the number of calls, else the operation, the size or the data type. Under different numbers ranks
    stand at different calls of the program, which may well be of other operations and shapes."""
    calls = [call for call, _ in Counter(_call(side) for side in sides.values()).most_common(2)]
    if len(calls) < 2:
        return None
    expected, found = (next(side for side in sides.values() if _call(side) == call) for call in calls)
    if expected.seq is not None and found.seq is not None and expected.seq != found.seq:
        return Mismatch("count", f"call number {expected.seq}", f"call number {found.seq}")
    if expected.operation != found.operation:
        return Mismatch("op", operation_name(expected.operation), operation_name(found.operation))
    if expected.shape != found.shape:
        return Mismatch("size", f"shape {expected.shape or 'unknown'}", f"shape {found.shape or 'unknown'}")
    return Mismatch("dtype", expected.dtype or "unknown", found.dtype or "unknown")


def who_is_behind(sides: Sides) -> str:
    """Who is how many collectives behind whom; "" where all are at one number or none is printed."""
    numbers = {rank: side.seq for rank, side in sides.items() if side.seq is not None}
    if len(set(numbers.values())) < 2:
        return ""
    low, high = min(numbers.values()), max(numbers.values())
    late, early = (sorted(rank for rank, number in numbers.items() if number == of) for of in (low, high))
    does = verb(late, "is", "are")
    what = "collective" if high - low == 1 else "collectives"
    numbered = f"(sequence numbers {low} and {high})"
    return f"{named_ranks(late)} {does} {high - low} {what} behind {named_ranks(early)} {numbered}"


def called_by_sides(sides: Sides) -> tuple[tuple[tuple[int, ...], str, str], ...]:
    """Who called what: ranks, the call, and no place, for the wrapper tells none."""
    one_number = len({side.seq for side in sides.values()}) == 1
    groups: dict[str, list[int]] = {}
    for rank, side in sorted(sides.items()):
        groups.setdefault(side_words(side, numbered=not one_number), []).append(rank)
    return tuple((tuple(ranks), what, "") for what, ranks in groups.items())


def side_words(side: SideOfMismatch, *, numbered: bool = True) -> str:
    """One side of a mismatch in words: operation, shape, type and, if asked, its number."""
    shape = f" of shape {side.shape}" if side.shape else ""
    dtype = f" ({side.dtype})" if side.dtype else ""
    number = f" number {side.seq}" if side.seq is not None and numbered else ""
    return f"{operation_name(side.operation) or 'a collective'}{shape}{dtype}{number}"


def _call(side: SideOfMismatch) -> tuple[str, str, str, int | None]:
    return side.operation, side.shape, side.dtype, side.seq


# Ranks whose calls did not fit together: what it means and what to do, by what differs.


_WHY: Final = {
    "op": "Ranks called different collectives at the same place.",
    "size": "Ranks called the same collective with tensors of different shapes.",
    "dtype": "Ranks called the same collective with tensors of different data types or devices.",
    "count": "The sequence numbers differ: one side is a collective (or more) behind the other, which it skipped or "
    "the other made extra. Operations and shapes that differ follow from that.",
}
_REMEDY: Final = {
    "op": "make every rank call the same collectives in the same order; look for `if rank == 0:` around one of them, "
    "and for a branch on its data",
    "size": "print(rank, tensor.shape) before that call; pad or cut to one shape, or gather the sizes first: a last "
    "batch, a sequence or a bucket whose length differs by rank",
    "dtype": "print(rank, tensor.dtype, tensor.device) before that call; look for autocast, a cast or a default that "
    "only some ranks take",
    "count": "look before this call for a collective that one side skipped or made extra: one under `if rank == 0:`, "
    "in an except or an early return, or in a loop, an accumulation or an evaluation that runs another number of times "
    "on some ranks (uneven data)",
}


def mismatch_words(differs: Mismatch) -> Words:
    """Given what differs, return what it means and what to do."""
    return Words(_WHY[differs.kind], _REMEDY[differs.kind])
