"""The last snapshots, kept for the timeline of an incident that nobody has foreseen."""

from collections import Counter, deque
from collections.abc import Sequence

from msgspec.structs import replace

from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey, NodeSnapshot, RankSample

# Of each user in what is not the latest look: who runs more costs himself his timeline, and nobody the node's memory.
_MOST_RANKS = 64
_MOST_CHILDREN = 1_024
_GPU_LOOKS = 5  # power and utilisation jump; a few samples tell spinning from working


class SnapshotRing:
    """The last minutes' snapshots, older ones thinned."""

    def __init__(self, seconds: float, tick_seconds: float) -> None:
        self._snapshots: deque[NodeSnapshot] = deque(maxlen=max(int(seconds / tick_seconds), 2))

    def add(self, snapshot: NodeSnapshot) -> None:
        """Add the newest; the one before it is thinned, since whole ones of many ranks would take the memory of the
        node."""
        if self._snapshots:
            before = self._snapshots[-1]
            snapshot, self._snapshots[-1] = _sharing(snapshot, before), _thinned(before)
        self._snapshots.append(snapshot)

    @property
    def latest(self) -> NodeSnapshot | None:
        """The newest; None before the first."""
        return self._snapshots[-1] if self._snapshots else None

    def all(self) -> Sequence[NodeSnapshot]:
        """All that are kept, oldest first; only the newest is whole."""
        return tuple(self._snapshots)

    def last_ranks_of(self, job: JobKey) -> Sequence[RankSample]:
        """Return a job's ranks at the last look that saw any: what is gone now was there a moment ago."""
        for snapshot in reversed(self._snapshots):
            ranks = [rank for rank in snapshot.ranks if rank.job == job]
            if ranks:
                return ranks
        return ()

    def gpus(self) -> Sequence[tuple[Gpu, ...]]:
        """Return the GPU samples of the last looks, oldest first."""
        known = [s.gpus.value for s in list(self._snapshots)[-_GPU_LOOKS:] if isinstance(s.gpus, Known)]
        return [gpus for gpus in known if gpus]


def _sharing(snapshot: NodeSnapshot, before: NodeSnapshot) -> NodeSnapshot:
    """The same, holding what the look before it holds wherever that is equal: each look is decoded anew, and what a
    rank leaves that has ended is in every one: of 40 such ranks in two minutes' looks 3 MB are kept instead of 16."""
    known = {(rank.pid, rank.start_ticks): rank for rank in before.ranks}
    ranks = tuple(_with_parts_of(rank, known.get((rank.pid, rank.start_ticks))) for rank in snapshot.ranks)
    return replace(snapshot, ranks=ranks)


def _with_parts_of(rank: RankSample, before: RankSample | None) -> RankSample:
    if before is None:
        return rank
    now, then = rank.heartbeat, before.heartbeat
    if isinstance(now, Known) and isinstance(then, Known) and now.value == then.value:
        now = Known(then.value, now.at_ns)
    return replace(
        rank,
        job=before.job if before.job == rank.job else rank.job,
        heartbeat=now,
        outputs=before.outputs if before.outputs == rank.outputs else rank.outputs,
        disks=before.disks if before.disks == rank.disks else rank.disks,
    )


def _thinned(snapshot: NodeSnapshot) -> NodeSnapshot:
    """Of who has many ranks or children keep so many, the same ones each time."""
    ranks, children = Counter(rank.job.owner for rank in snapshot.ranks), Counter[str]()
    for rank in snapshot.ranks:
        if isinstance(rank.process, Known):
            children[rank.job.owner] += len(rank.process.value.children)
    if max(ranks.values(), default=0) <= _MOST_RANKS and max(children.values(), default=0) <= _MOST_CHILDREN:
        return snapshot
    kept, of_owner = [], Counter[str]()
    for rank in snapshot.ranks:
        of_owner[rank.job.owner] += 1
        if of_owner[rank.job.owner] > _MOST_RANKS:
            continue
        if children[rank.job.owner] > _MOST_CHILDREN and isinstance(rank.process, Known):
            childless = replace(rank.process.value, children=())
            rank = replace(rank, process=Known(childless, rank.process.at_ns))
        kept.append(rank)
    return replace(snapshot, ranks=tuple(kept))
