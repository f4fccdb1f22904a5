"""How many ranks an environment says that its job has, here and in all, by the names of each launcher. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from stallwatch.hook.launcher_variables import LAUNCHER_VARIABLES

# A shell in an allocation is a step of one node (salloc's interactive step): the most that is said counts.
_NODES: Final = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_STEP_NUM_NODES")


class JobSize(NamedTuple):
    """Numbers of ranks: of this node, and of the whole job."""

    local: int
    world: int


def job_size(values: Mapping[str, str]) -> JobSize | None:
    """The ranks of this node and of the job, by the first launcher that says both; None: none does."""
    for names in LAUNCHER_VARIABLES:
        local, world = _first(values, names.local_sizes), _first(values, names.sizes)
        if local and world:
            return JobSize(local, world)
    return None


def local_ranks(values: Mapping[str, str]) -> int | None:
    """The ranks of this node."""
    return next((said for names in LAUNCHER_VARIABLES if (said := _first(values, names.local_sizes))), None)


def said_nodes(values: Mapping[str, str]) -> int | None:
    """The number of nodes that Slurm says, or that its tasks need (sbatch(1), OUTPUT ENVIRONMENT VARIABLES)."""
    nodes = max((said for name in _NODES if (said := number(values, name))), default=None)
    tasks, per_node = number(values, "SLURM_NTASKS"), number(values, "SLURM_NTASKS_PER_NODE")
    return -(-tasks // per_node) if nodes is None and tasks and per_node else nodes


def _first(values: Mapping[str, str], names: Iterable[str]) -> int | None:
    return next((said for name in names if (said := number(values, name))), None)


def number(values: Mapping[str, str], name: str) -> int | None:
    """Return a variable's value as a number; None where it is not set or not made of digits alone."""
    text = values.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None
