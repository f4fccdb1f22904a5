"""Who else runs on the CPUs that a rank may use: other programs, ranks, what ranks have started, its own threads."""

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from stallwatch.model.evidence import Neighbour
from stallwatch.model.snapshot import RankSample
from stallwatch.node.procfs import TICKS_PER_SECOND, ProcessDirectory, Stat, parse_stat, stat_of

_MOST_PROCESSES = 20_000
_MOST_THREADS = 512
_MOST_NAMED = 3  # of what is the rank's own, and as many others: its workers are busier than who disturbs it
_LEAST_OF_ALL = 0.1  # of a CPU, of what is named
_LEAST_OF_ONE = 0.01  # of a CPU, of what is counted in that
_TICK_SECONDS = 1.0 / TICKS_PER_SECOND
_MOST_GENERATIONS = 64


class Ran(NamedTuple):
    """A process or thread, and the share of a CPU that it took over some seconds."""

    pid: int
    command: str
    share: float


class _Kin(NamedTuple):
    """What a process is to ranks, and which one."""

    kin: Literal["rank", "child", "thread"] | None = None
    rank: int | None = None
    training_job: str = ""


def processes(proc: str = "/proc") -> dict[int, Stat]:
    """All processes of this node, by pid."""
    found = {}
    for name in os.listdir(proc)[:_MOST_PROCESSES]:
        if not name.isdecimal():
            continue
        try:
            found[int(name)] = stat_of(int(name), proc)
        except (OSError, ValueError):
            continue
    return found


def threads_of(pid: int, proc: str = "/proc") -> dict[int, Stat]:
    """The threads of a process beside its main thread, by their ids; none of one that is gone."""
    found: dict[int, Stat] = {}
    with contextlib.suppress(OSError), ProcessDirectory(pid, proc) as directory:
        for tid in sorted(int(name) for name in directory.names("task"))[: _MOST_THREADS + 1]:
            if tid != pid:
                with contextlib.suppress(OSError, ValueError):
                    found[tid] = parse_stat(directory.read(f"task/{tid}/stat"))
    return found


def ran_on(before: Mapping[int, Stat], after: Mapping[int, Stat], cpus: Collection[int], seconds: float) -> list[Ran]:
    """Given processes or threads at two moments so many seconds apart, return what each of those took that ran last on
    one of `cpus`. Who began meanwhile is left out."""
    found = [
        Ran(pid, stat.command, (stat.cpu_ticks - before[pid].cpu_ticks) * _TICK_SECONDS / seconds)
        for pid, stat in after.items()
        if pid in before and before[pid].start_ticks == stat.start_ticks and stat.processor in cpus
    ]
    return [one for one in found if one.share >= _LEAST_OF_ONE]


def neighbours(
    own_pid: int,
    ran: Sequence[Ran],
    threads: Sequence[Ran],
    stats: Mapping[int, Stat],
    ranks: Mapping[int, RankSample],
) -> tuple[Neighbour, ...]:
    """Given what processes took, and the threads of the rank's own process beside its main thread, return who is to be
    named beside that, the busiest first: what is of one rank and name together, for eight workers of a loader take a
    ninth of its CPU each; of no rank each by itself, for processes of one name (ours, too) have nothing in common.
    `stats` are all processes, `ranks` the known ones by pid."""
    own = ranks.get(own_pid)
    groups: dict[tuple[_Kin, str, int], list[Ran]] = defaultdict(list)
    for one in ran:
        if one.pid != own_pid:
            kin = _kin(one.pid, own, stats, ranks)
            groups[kin, one.command, 0 if kin.kin else one.pid].append(one)
    for one in threads:
        groups[_Kin("thread", own.rank if own else None), one.command, 0].append(one)
    found = [_together(kin, members) for (kin, _, _), members in groups.items()]
    found = sorted((one for one in found if one.cpu_share >= _LEAST_OF_ALL), key=_busiest_first)
    of_own = [one for one in found if own is not None and one.is_of((own.rank,))]
    others = [one for one in found if one not in of_own]
    return tuple(sorted((*of_own[:_MOST_NAMED], *others[:_MOST_NAMED]), key=_busiest_first))


def _busiest_first(one: Neighbour) -> tuple[float, int]:
    return -one.cpu_share, one.pid


def _together(kin: _Kin, members: Sequence[Ran]) -> Neighbour:
    busiest = min(members, key=lambda one: (-one.share, one.pid))
    return Neighbour(busiest.pid, busiest.command, sum(one.share for one in members), len(members), *kin)


def _kin(pid: int, own: RankSample | None, stats: Mapping[int, Stat], ranks: Mapping[int, RankSample]) -> _Kin:
    """By the nearest rank among it and who has started it; who was given to another parent is nobody's."""
    at = pid
    for _ in range(_MOST_GENERATIONS):
        if (rank := ranks.get(at)) is not None and at in stats and rank.start_ticks == stats[at].start_ticks:
            job = "" if own is not None and own.job == rank.job else rank.job.training_job
            return _Kin("rank" if at == pid else "child", rank.rank, job)
        if at not in stats or stats[at].parent_pid == at:
            break
        at = stats[at].parent_pid
    return _Kin()
