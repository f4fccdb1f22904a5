"""What a process' environment says about its rank, for processes without a hook.

The precedence is the hook's own (hook/identity.py; a test holds the two together), so that ranks with and without a
hook are one job.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stallwatch.formats.outside_text import name_of
from stallwatch.hook.identity import RANDOM_RUN, script_of

_NAMES = frozenset((
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "STALLWATCH_JOB", "STALLWATCH_DISABLE",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_RESTART_COUNT",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "KUBERNETES_SERVICE_HOST", "POD_NAME", "HOSTNAME", "PET_RDZV_ID",
))  # fmt: skip
# (rank, sizes, local rank, variable without which the rank means something else)
_SCHEMES = (
    ("RANK", ("WORLD_SIZE",), "LOCAL_RANK", ""),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID", "SLURM_STEP_ID"),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK", ""),
)
_MOST_DIGITS = 9  # of a rank, a size, a count of restarts
_REPLICA = re.compile(
    r"(-(master|worker|launcher|chief|trainer|node|replica|leader|head))?-\d+(-[a-z0-9]{5})?$|"
    r"-(master|launcher|chief|leader|head)(-[a-z0-9]{5})?$"
)


class RankNames(NamedTuple):
    rank: int
    local_rank: int
    world_size: int
    training_job: str
    epoch: str


def is_disabled(environment: dict[str, str]) -> bool:
    """Whether STALLWATCH_DISABLE turns us off, as the hook reads it (hook/attachment.py)."""
    return environment.get("STALLWATCH_DISABLE", "").strip().lower() not in ("", "0", "no", "false", "off")


def parse_environment(data: bytes) -> dict[str, str]:
    """Keep the names that tell a rank; everything else in an environment is none of our business. Values are as
    os.environ has them: what is no UTF-8 is in surrogates."""
    values = {}
    for entry in data.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and (text := name.decode("utf-8", "replace")) in _NAMES:
            values[text] = value.decode("utf-8", "surrogateescape")
    return values


def rank_names(environment: dict[str, str], arguments: Callable[[], Sequence[str]] = tuple) -> RankNames | None:
    """Return the rank that an environment names, of a process with these `arguments`, which are asked for where a job
    takes its name from them; None when it names no rank, no size or no local rank, for then
    nothing but the variables of a shell may have been inherited."""
    for rank_name, sizes, local_name, needs in _SCHEMES:
        rank = _number(environment, rank_name)
        if rank is None or (needs and needs not in environment):
            continue
        size, local = _number(environment, *sizes, "WORLD_SIZE"), _number(environment, local_name, "LOCAL_RANK")
        if size is None or local is None or rank >= size:
            return None
        address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
        restarts = _number(environment, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0
        run = environment.get("TORCHELASTIC_RUN_ID", "") or _slurm_step(environment)
        return RankNames(
            rank=rank,
            local_rank=local,
            world_size=size,
            training_job=_as_recorded(_training_job(environment, arguments, address, port)),
            epoch=_as_recorded(f"{address}:{port}/{size}/{restarts}/{run}"),
        )
    return None


def _as_recorded(text: str) -> str:
    """As the record of a hook has it, which writes "?" for what is no UTF-8: with and without a hook it is one job."""
    return name_of(text.encode("utf-8", "replace"))


def _training_job(environment: dict[str, str], arguments: Callable[[], Sequence[str]], address: str, port: str) -> str:
    named = environment.get("STALLWATCH_JOB", "").strip()
    if named:
        return named
    slurm = environment.get("SLURM_JOB_ID", "")
    if slurm:
        if "SLURM_ARRAY_JOB_ID" in environment:
            slurm = environment["SLURM_ARRAY_JOB_ID"] + "_" + environment.get("SLURM_ARRAY_TASK_ID", "")
        return "-".join(filter(None, (environment.get("SLURM_JOB_NAME", ""), slurm)))
    pod = environment.get("POD_NAME") or environment.get("HOSTNAME") or ""
    if "KUBERNETES_SERVICE_HOST" in environment and (pod or "PET_RDZV_ID" in environment):
        return environment.get("PET_RDZV_ID") or _REPLICA.sub("", pod) or pod
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run in ("", "none"):
        return f"{address}:{port}"
    return (script_of(arguments()) if RANDOM_RUN.fullmatch(run) else "") or run


def _slurm_step(environment: dict[str, str]) -> str:
    if "SLURM_JOB_ID" not in environment:
        return ""
    return f"{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '')}"


def _number(environment: dict[str, str], *names: str) -> int | None:
    for name in names:
        text = environment.get(name, "").strip()
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            return int(text)
    return None
