"""What the steps of a playbook refer to: the first culprit with its host, pid and activity."""

from collections.abc import Mapping
from typing import NamedTuple

from stallwatch.diagnosis.activity import Activity
from stallwatch.model.verdict import CulpritProcess, Verdict

UNKNOWN_PID = "<pid>"


class Scene(NamedTuple):
    """The first culprit, whose host and pid the commands carry; the steps for the others are the same."""

    verdict: Verdict
    rank: int | None
    host: str
    pid: str
    activity: Activity | None
    process: CulpritProcess

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else "the culprit"

    @property
    def name_first(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    @property
    def gpu(self) -> str:
        """ " -i GPU-1a2b" for nvidia-smi, or "" where the rank's GPU is not known: all are shown then."""
        return f" -i {self.process.gpu_uuid}" if self.process.gpu_uuid else ""


def scene_of(verdict: Verdict, activities: Mapping[int, Activity]) -> Scene:
    rank = verdict.culprits[0] if verdict.culprits else None
    known = {process.rank: process for process in verdict.culprit_processes}
    process = known.get(rank, CulpritProcess(rank)) if rank is not None else CulpritProcess(-1)
    activity = activities.get(rank) if rank is not None else None
    host = process.host or (activity.host if activity else None)
    pid = process.pid if process.pid is not None else (activity.pid if activity else None)
    return Scene(
        verdict,
        rank,
        host or (f"the node of rank {rank}" if rank is not None else "its node"),
        str(pid) if pid is not None else UNKNOWN_PID,
        activity,
        process,
    )
