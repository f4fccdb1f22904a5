"""The last snapshots, kept for the timeline of an incident that nobody has foreseen."""

from collections import deque
from collections.abc import Sequence

from stallwatch.model.gpu import Gpu
from stallwatch.model.reading import Known
from stallwatch.model.snapshot import JobKey, NodeSnapshot, RankSample

_GPU_LOOKS = 5  # power and utilisation jump; a few samples tell spinning from working


class SnapshotRing:
    def __init__(self, seconds: float, tick_seconds: float) -> None:
        self._snapshots: deque[NodeSnapshot] = deque(maxlen=max(int(seconds / tick_seconds), 2))

    def add(self, snapshot: NodeSnapshot) -> None:
        self._snapshots.append(snapshot)

    @property
    def latest(self) -> NodeSnapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    def all(self) -> Sequence[NodeSnapshot]:
        """Oldest first."""
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
