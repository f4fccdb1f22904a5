"""How a script starts its job: nodes, ranks of a node, the address of rank 0, the GPUs that it names. Pure."""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from stallwatch.doctor.advice.named_files import Line
from stallwatch.model.launchers import LAUNCHERS, MODULES, launcher_of_command

_TYPED: Final = "|".join(f"(?:{'|'.join(one.programs)}){one.subcommand}" for one in LAUNCHERS)
_LAUNCHER: Final = re.compile(
    rf"(?<![\w./-])(?:[\w./-]*/)?(?P<name>{_TYPED}|"
    rf"python[\d.]*\s+(?:-\w+\s+)*-m\s+(?:{'|'.join(map(re.escape, MODULES))}))(?![\w.-])"
)
_OPTION: Final = r"(?<![\w-])--?(?:{})(?:[=\s]+)[\"']?(?P<value>[^\s\"'\\]+)"
_NODES: Final = re.compile(_OPTION.format("nnodes|num[_-]nodes|num[_-]machines|nodes|N"))
_LOCAL: Final = re.compile(_OPTION.format("nproc[_-]per[_-]node|num[_-]gpus|npernode|ntasks-per-node|nproc|devices"))
_MASTER: Final = re.compile(_OPTION.format("master[_-]addr|main[_-]process[_-]ip|rdzv[_-]endpoint"))
_INCLUDE: Final = re.compile(_OPTION.format("include|i"))
_HOSTS: Final = re.compile(_OPTION.format("H|host|hosts|hostlist|w|nodelist"))
_BATCH: Final = re.compile(r"^\s*#SBATCH\s+(?P<rest>.*)")
_VISIBLE: Final = re.compile(r"(?:^|[\s;&(])CUDA_VISIBLE_DEVICES=[\"']?(?P<value>[\w,/-]*)[\"']?(?P<rest>.*)")

_KIND: Final = re.compile(r"^\s*[\"']?kind[\"']?\s*:\s*[\"']?(\w+)", re.MULTILINE)
_REPLICAS: Final = re.compile(r"\b(Master|Worker|Launcher)[\"']?\s*:\s*\{?\s*[\"']?replicas[\"']?\s*:\s*(\d+)")


class LaunchCommand(NamedTuple):
    """One command that starts ranks. None is "not said", or known only when it runs."""

    line: int
    launcher: str  # "accelerate launch", "python -m torch.distributed.run"
    nodes: int | None
    local_ranks: int | None
    master: str  # "" where nothing is said
    visible: tuple[str, ...] | None  # names in CUDA_VISIBLE_DEVICES when it starts
    visible_line: int = 0
    ignores_visible: bool = False  # DeepSpeed with --include, --exclude, --num_gpus

    def option(self, ranks: int) -> str:
        """What this launcher is given to start so many ranks on a node."""
        of_launcher = launcher_of_command(self.launcher).ranks_option
        # accelerate counts the processes of all machines.
        return of_launcher.format(ranks * (self.nodes or 1) if "accelerate" in self.launcher else ranks)


def launches(lines: Iterable[Line], comments: Iterable[Line] = ()) -> list[LaunchCommand]:
    """Given the commands of a script, and its comments (#SBATCH), return what it starts."""
    found = []
    batch = " ".join(match["rest"] for _, line in comments if (match := _BATCH.match(line)))
    values: dict[str, str] = {}
    visible: tuple[str, ...] | None = None
    visible_line = 0
    for number, line in lines:
        for name, value in re.findall(r"(?:^|[\s;])(?:export\s+)?([A-Za-z_]\w*)=[\"']?([\w.:,-]+)", line):
            values[name] = value
        match = _VISIBLE.search(line)
        names = tuple(filter(None, match["value"].split(","))) if match else visible
        launchers = list(_LAUNCHER.finditer(line))
        launcher = launchers[0] if launchers else None
        # In front of another command it is that command's alone.
        if match and not launcher and (re.match(r"\s*(?:[;&#]|[A-Z_]+=|$)", match["rest"]) or "export" in line):
            visible, visible_line = names, number
        if re.match(r"\s*unset\b.*\bCUDA_VISIBLE_DEVICES\b", line):
            visible = None
        if not launcher:
            continue
        rest = _expanded(line[launcher.end() :], values)
        own = launchers[-1]  # srun starts torchrun, which starts the ranks
        nodes = _nodes(rest, batch, values)
        found.append(
            LaunchCommand(
                line=number,
                launcher=own["name"],
                nodes=nodes,
                local_ranks=_local(own["name"], _expanded(line[own.end() :], values), nodes, batch),
                master=_host(_first(_MASTER, rest)) or values.get("MASTER_ADDR", ""),
                visible=names,
                visible_line=number if match else visible_line,
                ignores_visible="deepspeed" in own["name"]
                and re.search(r"--(?:include|exclude|num_gpus)\b|\s-[ie]\s", rest) is not None,
            )
        )
    return found


def pods_of_operator(text: str) -> int | None:
    """Pods with ranks of a manifest of Kubeflow's training operator: the master and workers of a PyTorchJob, the
    workers of an MPIJob, whose launcher has none. None: not one such manifest."""
    kinds = _KIND.findall(text)
    if len(kinds) != 1 or kinds[0] not in ("PyTorchJob", "MPIJob"):
        return None
    roles = {role: int(replicas) for role, replicas in _REPLICAS.findall(text)}
    return sum(replicas for role, replicas in roles.items() if role != "Launcher") or None


def _expanded(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: values.get(match[1], match[0]), text)


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match["value"] if match else ""


def _nodes(rest: str, batch: str, values: dict[str, str]) -> int | None:
    """Of an elastic range "1:4" the most."""
    for said in (_first(_NODES, rest), _first(_NODES, batch), values.get("NNODES", ""), values.get("PET_NNODES", "")):
        last = said.rpartition(":")[2]
        if last.isdecimal():
            return int(last)
    hosts = [one for one in _first(_HOSTS, rest).split(",") if one]
    if len(hosts) > 1:
        return len(hosts)
    included = [one for one in _first(_INCLUDE, rest).split("@") if one]
    return len(included) if len(included) > 1 else None


def _local(launcher: str, rest: str, nodes: int | None, batch: str) -> int | None:
    included = _first(_INCLUDE, rest) if "deepspeed" in launcher else ""
    if included and "@" not in included and ":" in included:
        return len([one for one in included.partition(":")[2].split(",") if one])
    said = _first(_LOCAL, rest) or (_first(_LOCAL, batch) if launcher == "srun" else "")
    if said.isdecimal():
        return int(said)
    of_all = re.search(r"\s--?np?[=\s]+(\d+)", rest) if launcher_of_command(launcher).told_by_hosts else None
    if of_all and "hostfile" not in rest and len(_first(_HOSTS, rest).split(",")) == 1:
        return int(of_all[1])  # of the whole job, which is here
    processes = re.search(r"--num[_-]processes[=\s]+(\d+)", rest)
    machines = re.search(r"--num[_-]machines[=\s]+(\d+)", rest)
    of_machines = int(machines[1]) if machines else nodes or 1
    if processes and of_machines and int(processes[1]) % of_machines == 0:
        return int(processes[1]) // of_machines
    return None


def _host(endpoint: str) -> str:
    return re.sub(r":\d+$", "", endpoint)
