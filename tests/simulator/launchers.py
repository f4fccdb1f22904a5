"""How launchers write what processes print: prefixes, files, time stamps, and their own words at the end of a run."""

import datetime
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

LOCAL_SIZE = 8
AGENT_PID = 4_990


@dataclass(frozen=True)
class Said:
    """Lines that a rank, or with rank None the launcher of a node, printed at a time (seconds since the start)."""

    at: float
    rank: int | None
    node: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class End:
    """How a process ended: `code` as Python counts it, negative for a signal; `own` not by the launcher's signal."""

    rank: int
    at: float
    code: int
    own: bool


def node_of(rank: int) -> int:
    return rank // LOCAL_SIZE


def pid_of(rank: int) -> int:
    return 5_000 + rank


def clock(at: float) -> datetime.datetime:
    return datetime.datetime(2026, 11, 28, 10, 0, 0, tzinfo=datetime.UTC) + datetime.timedelta(seconds=at)


def stamp(at: float) -> str:
    """As glog writes it: no year, the month without a zero."""
    now = clock(at)
    return f"{now.month}{now:%d %H:%M:%S}.{now.microsecond:06d}123"


_SIGNALS = {-6: "SIGABRT", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}
_WORDS = {-6: "Aborted (core dumped)", -9: "Killed", -11: "Segmentation fault", -15: "Terminated"}


def agent(version: str, ends: list[End], node: int, nodes: int) -> list[Said]:
    """torchrun's agent of a node: it signals the others once the first of its own has failed, and lists what failed."""
    mine = sorted((end for end in ends if node_of(end.rank) == node), key=lambda end: (end.at, end.rank))
    failed = [end for end in mine if end.own and end.code]
    if not failed:
        return []
    first = failed[0]
    mark = f"E{stamp(first.at + 1).replace('123', '')} {AGENT_PID} torch/distributed/elastic/multiprocessing/api.py"
    old: tuple[str, str] | None = None
    if version in ("1.13", "2.0"):
        name = "torch.distributed.elastic.multiprocessing.api:"
        old = (f"WARNING:{name}", f"ERROR:{name}")
    elif version in ("2.1", "2.3"):
        head = f"[{clock(first.at + 1):%Y-%m-%d %H:%M:%S},100] torch.distributed.elastic.multiprocessing.api: "
        old = (f"{head}[WARNING] ", f"{head}[ERROR] ")
    warn, error = old or (f"W{mark[1:]}:897] ", f"{mark}:869] ")
    cleared = [end for end in mine if end is not first and (not end.own or end.at > first.at + 1)]
    lines = [f"{warn}Sending process {pid_of(end.rank)} closing signal SIGTERM" for end in cleared]
    local = first.rank % LOCAL_SIZE
    lines.append(
        f"{error}failed (exitcode: {first.code}) local_rank: {local} (pid: {pid_of(first.rank)}) of binary: "
        "/env/bin/python"
    )
    blocks = [end for end in failed if end is first or end.at <= first.at + 1]
    return [Said(first.at + 1.5, None, node, (*lines, *_summary(blocks, version)))]


def _summary(failed: list[End], version: str) -> list[str]:
    rule, thin = "=" * 60, "-" * 60
    lines = [
        "Traceback (most recent call last):",
        '  File "/env/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        rule, "/app/train.py FAILED", thin, "Failures:",
    ]  # fmt: skip
    for place, end in enumerate(failed[1:], 1):
        lines += _block(place, end, version)
    lines += [] if len(failed) > 1 else ["  <NO_OTHER_FAILURES>"]
    return [*lines, thin, "Root Cause (first observed failure):", *_block(0, failed[0], version), rule]


def _block(place: int, end: End, version: str) -> list[str]:
    name = _SIGNALS.get(end.code, "")
    newer = f"  ({name})" if name and version not in ("1.13", "2.0", "2.1") else ""
    signal = f"Signal {-end.code} ({name}) received by PID {pid_of(end.rank)}"
    plain = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    return [
        f"[{place}]:",
        f"  time      : {clock(end.at):%Y-%m-%d_%H:%M:%S}",
        f"  host      : node{node_of(end.rank)}",
        f"  rank      : {end.rank} (local_rank: {end.rank % LOCAL_SIZE})",
        f"  exitcode  : {end.code} (pid: {pid_of(end.rank)}){newer}",
        "  error_file: <N/A>",
        f"  traceback : {signal if name else plain}",
    ]


def srun(ends: list[End]) -> list[Said]:
    failed = sorted((end for end in ends if end.own and end.code), key=lambda end: (end.at, end.rank))
    if not failed:
        return []
    said = [Said(end.at + 0.2, None, 0, (_srun_line(end),)) for end in failed[:2]]
    cleared = [end for end in ends if not end.own]
    at = failed[0].at + 1
    words = (
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        f"slurmstepd: error: *** STEP 4711.0 ON node0 CANCELLED AT {clock(at):%Y-%m-%dT%H:%M:%S} ***",
        *(f"srun: error: node{node_of(end.rank)}: task {end.rank}: Terminated" for end in cleared[:3]),
    )
    return [*said, Said(at, None, 0, words)] if cleared else said


def _srun_line(end: End) -> str:
    how = _WORDS.get(end.code, f"Exited with exit code {end.code}")
    return f"srun: error: node{node_of(end.rank)}: task {end.rank}: {how}"


def mpirun(ends: list[End]) -> list[Said]:
    failed = sorted((end for end in ends if end.own and end.code), key=lambda end: (end.at, end.rank))
    if not failed:
        return []
    first, rule = failed[0], "-" * 74
    how = f"exited on signal {-first.code} ({_WORDS.get(first.code, '')})"
    if first.code > 0:
        lines: tuple[str, ...] = (
            rule, "mpirun detected that one or more processes exited with non-zero status, thus causing",
            "the job to be terminated. The first process to do so was:", "",
            f"  Process name: [[31415,1],{first.rank}]", f"  Exit code:    {first.code}", rule,
        )  # fmt: skip
    else:
        lines = (
            rule, f"mpirun noticed that process rank {first.rank} with PID {pid_of(first.rank)} on node "
            f"node{node_of(first.rank)} {how}.", rule,
        )  # fmt: skip
    return [Said(first.at + 1, None, 0, lines)]


def deepspeed(ends: list[End], node: int) -> list[Said]:
    failed = sorted(
        (end for end in ends if end.own and end.code and node_of(end.rank) == node), key=lambda end: (end.at, end.rank)
    )
    if not failed:
        return []
    first = failed[0]
    head = f"[{clock(first.at + 1):%Y-%m-%d %H:%M:%S},100]"
    mates = [end for end in ends if node_of(end.rank) == node]
    lines = [f"{head} [INFO] [launch.py:319:sigkill_handler] Killing subprocess {pid_of(end.rank)}" for end in mates]
    lines.append(
        f"{head} [ERROR] [launch.py:325:sigkill_handler] ['/env/bin/python', '-u', '/app/train.py', "
        f"'--local_rank={max(end.rank for end in mates) % LOCAL_SIZE}'] exits with return code = {first.code}"
    )
    return [Said(first.at + 1, None, node, tuple(lines))]


def accelerate(version: str, ends: list[End], node: int, nodes: int) -> list[Said]:
    """torchrun's agent within accelerate's launcher."""
    above = (
        "Traceback (most recent call last):",
        '  File "/env/bin/accelerate", line 8, in <module>',
        "    sys.exit(main())",
        '  File "/env/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1188, in launch_command',
        "    multi_gpu_launcher(args)",
    )
    said = agent(version, ends, node, nodes)
    return [Said(one.at, None, node, (*above, *one.lines)) for one in said]


LAUNCHERS = (
    "torchrun", "torchrun --tee", "torchrun --log-dir", "srun -l", "mpirun", "containerd", "kubectl", "ray",
    "deepspeed", "accelerate", "a file each",
)  # fmt: skip
NAMES_RANKS = ("srun -l", "mpirun", "a file each", "torchrun --log-dir")  # whatever torch's version


def ends_told(launcher: str, version: str, ends: list[End], nodes: int) -> list[Said]:
    """What the launcher itself says of the end."""
    if launcher == "srun -l":
        return srun(ends)
    if launcher == "mpirun":
        return mpirun(ends)
    each: Callable[[int], list[Said]]
    if launcher == "deepspeed":
        each = lambda node: deepspeed(ends, node)  # noqa: E731
    elif launcher == "accelerate":
        each = lambda node: accelerate(version, ends, node, nodes)  # noqa: E731
    elif launcher in ("ray", "a file each"):
        return []
    else:
        each = lambda node: agent(version, ends, node, nodes)  # noqa: E731
    return [said for node in range(nodes) for said in each(node)]


def files(rng: random.Random, launcher: str, said: Iterable[Said], nodes: int) -> dict[str, str]:
    """The text of each file by its name: in the order in which lines were printed, with the launcher's prefixes."""
    style = rng.choice(("", "", "iso", "plain"))
    one_file = launcher in ("srun -l", "mpirun", "ray") or (nodes > 1 and rng.random() < 0.3)
    texts: dict[str, list[str]] = {}
    for one in sorted(said, key=lambda s: s.at):
        name = "job.log" if one_file and launcher != "containerd" else f"node{one.node}.log"
        if one.rank is not None and launcher == "a file each":
            name = f"rank_{one.rank}.log"
        elif one.rank is not None and launcher == "torchrun --log-dir":
            name = f"node{one.node}/none_x1/attempt_0/{one.rank % LOCAL_SIZE}/stderr.log"
        mark = _mark(launcher, one)
        time = {"iso": f"{clock(one.at):%Y-%m-%dT%H:%M:%S}.1234567Z ", "plain": f"{clock(one.at):%Y-%m-%d %H:%M:%S} "}
        front = time.get(style, "") if launcher not in ("containerd", "srun -l", "mpirun") else ""
        texts.setdefault(name, []).extend(f"{front}{mark}{line}" for line in one.lines)
    return {name: "\n".join(lines) + "\n" for name, lines in texts.items()}


def _mark(launcher: str, one: Said) -> str:
    rank, now = one.rank, clock(one.at)
    if launcher == "containerd":
        return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06d}789Z stderr F "
    if launcher == "kubectl":
        return f"[pod/train-worker-{one.node}/pytorch] "
    if rank is None:
        return ""
    return {
        "torchrun --tee": f"[default{rank % LOCAL_SIZE}]:",
        "srun -l": f"{rank}: ",
        "mpirun": f"[1,{rank}]<stderr>:",
        "ray": f"(RayTrainWorker pid={pid_of(rank)}, ip=10.0.0.{one.node + 1}) ",
    }.get(launcher, "")
