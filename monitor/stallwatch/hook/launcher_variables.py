"""The variables by which launchers number ranks: one table for hook, sensors, doctor and self-test."""

from typing import NamedTuple


class LauncherVariables(NamedTuple):
    """What one launcher calls them; of several names the first that is set counts, () where it tells none."""

    rank: str
    sizes: "tuple[str, ...]"  # of the whole job
    local_ranks: "tuple[str, ...]"
    local_sizes: "tuple[str, ...]"  # how many ranks of the job are on the node
    needs: str = ""  # a variable without which the rank means something else


# torchrun and its like; srun; Open MPI (ompi_rte.c); MPICH's Hydra and Intel MPI; PMIx; MVAPICH2. Slurm sets
# SLURM_PROCID=0 in a batch script too, where no srun has numbered anything: only a step counts.
LAUNCHER_VARIABLES = (
    LauncherVariables("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",)),
    LauncherVariables(
        "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), (), "SLURM_STEP_ID"
    ),
    LauncherVariables(
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    LauncherVariables("PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("MPI_LOCALNRANKS",)),
    LauncherVariables("PMIX_RANK", (), (), ()),
    LauncherVariables(
        "MV2_COMM_WORLD_RANK",
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
)
RANK_NAMES = tuple(one.rank for one in LAUNCHER_VARIABLES)
LOCAL_RANK_NAMES = tuple(name for one in LAUNCHER_VARIABLES for name in one.local_ranks)
SIZE_NAMES = tuple(name for one in LAUNCHER_VARIABLES for name in (*one.sizes, *one.local_sizes))
