"""Who this process is: rank, world and training job, from the environment that launchers set.

Training job, first that is present:

1. STALLWATCH_JOB
2. Slurm: SLURM_JOB_NAME-SLURM_JOB_ID (array jobs SLURM_ARRAY_JOB_ID_SLURM_ARRAY_TASK_ID)
3. Kubernetes: PET_RDZV_ID (Kubeflow), else the pod's name without its replica suffix: llama-worker-3 → llama
4. torchrun's run id (TORCHELASTIC_RUN_ID, unless it is the default "none"); where that is a random one
   (torchrun --standalone), the script's or module's name: train.py → train
5. MASTER_ADDR:MASTER_PORT, or the address of torch.distributed's store
6. the script's or module's name, for a process that no launcher started; local-<pid> where it has none

A process without any rank variable is rank 0 of a world of 1, as every launcher and trainer takes it, until
torch.distributed is initialised and says better. Lightning's own launcher names no rank: see `_started_by_lightning`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple, Optional

from stallwatch.hook.launcher_variables import LAUNCHER_VARIABLES, LOCAL_RANK_NAMES, RANK_NAMES, SIZE_NAMES

# All variables that are read here.
NAMES = frozenset(
    (
        *(*RANK_NAMES, *SIZE_NAMES, *LOCAL_RANK_NAMES, *(one.needs for one in LAUNCHER_VARIABLES if one.needs)),
        *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "STALLWATCH_JOB"),
        *("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"),
        *("KUBERNETES_SERVICE_HOST", "POD_NAME", "HOSTNAME", "PET_RDZV_ID", "NODE_RANK"),
    )
)
# <job>[-<role>]-<index>[-<5 random characters of an indexed Job's pod>]
_REPLICA = re.compile(
    r"(-(master|worker|launcher|chief|trainer|node|replica|leader|head))?-\d+(-[a-z0-9]{5})?$|"
    r"-(master|launcher|chief|leader|head)(-[a-z0-9]{5})?$"
)
_RANDOM_RUN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # str(uuid.uuid4())
_MOST_DIGITS = 9  # of a rank, a size, a count of restarts
PARENT_VARIABLE = "STALLWATCH_PARENT"


class World(NamedTuple):
    """A rank's place in one life of one job; the part of an identity that can become known late."""

    rank: int
    local_rank: int  # -1: not known
    world_size: int  # -1: not known
    restart_count: int
    training_job: str
    epoch: str
    is_ranked: bool  # False: no launcher named a rank


class ProcessIdentity(NamedTuple):
    """What tells this process from all others that had or have its pid, on this node and in its containers."""

    pid: int
    start_ticks: int
    pid_namespace: int
    node: str


def this_process() -> ProcessIdentity:
    """Return who this process is, by /proc; `start_ticks` is -1 where the kernel does not tell."""
    pid = os.getpid()
    return ProcessIdentity(pid, start_ticks(pid) or -1, os.stat("/proc/self/ns/pid").st_ino, os.uname().nodename)


def start_ticks(pid: int) -> "Optional[int]":
    """Field 22 of /proc/<pid>/stat: with the pid it names one process for as long as the node is up. None: gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command, in parentheses, may hold anything: count from its end.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def world_of(
    environment: "Mapping[str, str]",
    process: "Optional[ProcessIdentity]",
    store: "Optional[tuple[str, str]]" = None,
    arguments: "Optional[Callable[[], Sequence[str]]]" = None,
) -> World:
    """Given the environment, and the address of the store where torch.distributed runs without MASTER_ADDR, return
    the place of the process. Of another process than this one nothing but its environment is known: `process` is None,
    and its `arguments` are asked for where a job takes its name from them."""
    rank, size, local = _rank(environment)
    if rank is None and process is not None:
        rank, size, local = _started_by_lightning(environment)
    restarts = _number(environment, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address and store:
        address, port = store
    run = environment.get("TORCHELASTIC_RUN_ID", "") or _slurm_step(environment)
    if rank is None and process is not None and not (run or address):
        run = f"local-{process.pid}"  # two runs of one script are two jobs
    world_size = size if size is not None else (1 if rank is None else -1)
    return World(
        rank=rank or 0,
        local_rank=local if local is not None else (0 if rank is None else -1),
        world_size=world_size,
        restart_count=restarts,
        training_job=_training_job(environment, process, address, port, arguments or _own_arguments),
        epoch=f"{address}:{port}/{world_size}/{restarts}/{run}",
        is_ranked=rank is not None,
    )


def _rank(environment: "Mapping[str, str]") -> "tuple[Optional[int], Optional[int], Optional[int]]":
    for names in LAUNCHER_VARIABLES:
        rank = _number(environment, names.rank)
        if rank is not None and (not names.needs or names.needs in environment):
            # torchrun's own names are also set by hand beside another launcher's ranks.
            size = _number(environment, *names.sizes, "WORLD_SIZE")
            return rank, size, _number(environment, *names.local_ranks, "LOCAL_RANK")
    return None, None, None


def _started_by_lightning(
    environment: "Mapping[str, str]",
) -> "tuple[Optional[int], Optional[int], Optional[int]]":
    """A script that Lightning trains is rank 0, and starts the others of its node by itself (`devices=4`), numbered by
    node and place: on the first node the place is the rank; how many places the nodes before have it does not tell.
    Without it each of them was a job of its own until all had met, and a start that never ends nobody's."""
    local, size = _number(environment, "LOCAL_RANK"), _number(environment, "WORLD_SIZE")
    if _number(environment, "NODE_RANK") != 0 or not local or size is None or local >= size:
        return None, None, None
    return local, size, local


def _number(environment: "Mapping[str, str]", *names: str) -> "Optional[int]":
    for name in names:
        text = environment.get(name, "").strip()
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            return int(text)
    return None


def _slurm_step(environment: "Mapping[str, str]") -> str:
    if "SLURM_JOB_ID" not in environment:
        return ""
    return f"{environment['SLURM_JOB_ID']}.{environment.get('SLURM_STEP_ID', '')}"


def _training_job(
    environment: "Mapping[str, str]",
    process: "Optional[ProcessIdentity]",
    address: str,
    port: str,
    arguments: "Callable[[], Sequence[str]]",
) -> str:
    named = environment.get("STALLWATCH_JOB", "").strip()
    if named:
        return named
    slurm = environment.get("SLURM_JOB_ID", "")
    if slurm:
        if "SLURM_ARRAY_JOB_ID" in environment:
            slurm = environment["SLURM_ARRAY_JOB_ID"] + "_" + environment.get("SLURM_ARRAY_TASK_ID", "")
        return "-".join(filter(None, (environment.get("SLURM_JOB_NAME", ""), slurm)))
    pod = environment.get("POD_NAME") or environment.get("HOSTNAME") or (process.node if process else "")
    if "KUBERNETES_SERVICE_HOST" in environment and (pod or "PET_RDZV_ID" in environment):
        return environment.get("PET_RDZV_ID") or _REPLICA.sub("", pod) or pod
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run not in ("", "none"):
        # torchrun --standalone makes a new one each time: as a name it says nothing, and there is no end of them.
        return (script_of(arguments()) if _RANDOM_RUN.fullmatch(run) else "") or run
    if address or process is None:
        return f"{address}:{port}"
    return script_of(arguments()) or f"local-{process.pid}"  # a pid in a name is a new series of metrics each time


def script_of(arguments: "Sequence[str]") -> str:
    """The program among an interpreter's arguments: "train" of `python -u -m stallwatch.run train.py`; "" for none."""
    words = iter(arguments[1:])
    for word in words:
        if word == "-m":
            module = next(words, "")
            if module != "stallwatch.run":
                return module.replace(".__main__", "").rpartition(".")[2]
        elif word == "-c":
            return ""
        elif word in ("-W", "-X"):
            next(words, None)
        elif not word.startswith("-"):
            name = word.rpartition("/")[2]
            return name[:-3] if name.endswith(".py") else name
    return ""


def _own_arguments() -> "list[str]":
    with open("/proc/self/cmdline", "rb") as file:
        return file.read(65_536).decode("utf-8", "surrogateescape").split("\0")


def parent_mark(process: ProcessIdentity, world: World) -> str:
    """What a process leaves in its environment for those that it starts."""
    return f"{process.pid}:{process.start_ticks}:{process.pid_namespace}:{world.rank}:{world.epoch}"


def is_child(mark: str, process: ProcessIdentity, world: World) -> bool:
    """Whether a live process of the same rank and world started this one (multiprocessing's spawn runs a top-level
    attach() again): then it is no rank of its own."""
    parts = mark.split(":", 4)
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() for part in parts[:4]):
        return False
    pid, ticks, namespace, rank = (int(part) for part in parts[:4])
    return (
        pid != process.pid
        and namespace == process.pid_namespace
        and (rank, parts[4]) == (world.rank, world.epoch)
        and start_ticks(pid) == ticks
    )
