"""What a process' environment says about its rank, for processes without a hook."""

from typing import NamedTuple

_NAMES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "STALLWATCH_JOB", "STALLWATCH_DISABLE",
    "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID",
)  # fmt: skip


class RankNames(NamedTuple):
    rank: int
    local_rank: int
    world_size: int
    training_job: str
    epoch: str


def parse_environment(data: bytes) -> dict[str, str]:
    """Keep the names that tell a rank; everything else in an environment is none of our business."""
    values = {}
    for entry in data.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and (text := name.decode("utf-8", "replace")) in _NAMES:
            values[text] = value.decode("utf-8", "replace")
    return values


def rank_names(environment: dict[str, str]) -> RankNames | None:
    """Return the rank that an environment names, by torchrun's variables, else by Slurm's; None when it names none."""
    values = {
        "RANK": environment.get("RANK", environment.get("SLURM_PROCID", "")),
        "WORLD_SIZE": environment.get("WORLD_SIZE", environment.get("SLURM_NTASKS", "")),
        "LOCAL_RANK": environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID", "")),
    }
    try:
        rank, world_size, local_rank = int(values["RANK"]), int(values["WORLD_SIZE"]), int(values["LOCAL_RANK"])
    except ValueError:
        return None
    if not 0 <= rank < world_size:
        return None
    address = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    job = environment.get("STALLWATCH_JOB") or environment.get("SLURM_JOB_ID") or (run if run != "none" else "")
    # Same parts in the same order as the hook's world key, so that ranks with and without a hook are one job.
    epoch = f"{address}/{world_size}/{restarts}/{run}"
    return RankNames(rank, local_rank, world_size, job or address, epoch)
