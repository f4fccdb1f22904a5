"""How scripts start their jobs: loopback addresses for several nodes, fewer GPUs than ranks."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from stallwatch.doctor.advice.launches import LaunchCommand, launches, pods_of_operator
from stallwatch.doctor.advice.named_files import Part, commands, parts, statements
from stallwatch.doctor.advice.scripts import texts
from stallwatch.doctor.advice.settings import Setting, settings, settings_of
from stallwatch.doctor.check import finding
from stallwatch.doctor.check_result import Area, FindingRecord, count
from stallwatch.doctor.network.interfaces import INTERFACE_VARIABLES
from stallwatch.doctor.surroundings import Surroundings
from stallwatch.formats.addresses import kind_of_address

_SHELLS: Final = (".sh", ".bash", ".sbatch", ".slurm")


class LaunchCheck(ABC):
    """A check of how scripts start their jobs: it looks at one part of a file after the other."""

    name: ClassVar[str]
    area: ClassVar[Area]
    looks_for: ClassVar[str]

    def look(self, surroundings: Surroundings) -> tuple[FindingRecord, ...]:
        """Return what is wrong in the shell commands of all scripts and guides that start ranks."""
        return tuple(
            record
            for path, text in texts(surroundings)
            for part in parts(path, text)
            if part.language in ("shell", "prose")
            for record in self.of_part(surroundings, path, part, launches(commands(part), part.lines))
        )

    @abstractmethod
    def of_part(
        self, surroundings: Surroundings, path: Path, part: Part, started: list[LaunchCommand]
    ) -> Iterator[FindingRecord]:
        """What is wrong in one part of a text that starts ranks."""


class LoopbackLaunch(LaunchCheck):
    """Only of a job that a launch, the person or an operator's manifest says to span two nodes or more."""

    name: ClassVar[str] = "loopback_launch"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = "in launch scripts: the loopback interface or address for a job of several nodes"

    def of_part(
        self, surroundings: Surroundings, path: Path, part: Part, started: list[LaunchCommand]
    ) -> Iterator[FindingRecord]:
        """Given a part of a file and what it starts, yield a finding for each interface set to lo, and one for the
        lines that make rank 0's address loopback; nothing of a job on one node."""
        nodes = max((one.nodes or 1 for one in started), default=1)
        nodes = max(nodes, surroundings.question.nodes or 1, pods_of_operator(part.text) or 1)
        if nodes < 2:
            return
        set_here = list(settings(statements(part)))
        # A command that is a list: `["mpirun", "-x", "NAME=value"]`.
        told = {one.name for one in set_here}
        set_here += [one for one in settings(commands(part)) if one.name not in told]
        for setting in set_here:
            if setting.name in INTERFACE_VARIABLES and setting.value.lstrip("=").rstrip(",]") == "lo":
                yield self._interface(path, setting, nodes)
        masters = [(one.line, one.master) for one in started if one.master]
        masters += [(one.line, one.value) for one in set_here if one.name in ("MASTER_ADDR", "PET_MASTER_ADDR")]
        lines = sorted({line for line, master in masters if kind_of_address(master) == "loopback"})
        if lines:
            also = f" (also line {', '.join(map(str, lines[1:]))})" if lines[1:] else ""
            yield finding(
                self, "error", f"{path}:{lines[0]}",
                seen=f"rank 0's address is this node's own loopback, and the job has {nodes} nodes{also}.",
                why="Every node then waits for a store of its own.",
                remedy=_master_option(started, set_here) + "<host name of the first node, as the others resolve it>",
                source="PyTorch documentation, torchrun",
            )  # fmt: skip

    def _interface(self, path: Path, setting: Setting, nodes: int) -> FindingRecord:
        return finding(
            self, "error", f"{path}:{setting.line}",
            seen=f"{setting.name}=lo, and the job has {nodes} nodes.",
            why="Ranks of other nodes cannot be reached by the loopback interface: they wait until they time out.",
            remedy=f"unset {setting.name}, or export {setting.name}=<the interface between the nodes: ip -br addr>",
            source="NCCL user guide, NCCL_SOCKET_IFNAME",
        )  # fmt: skip


def _master_option(started: list[LaunchCommand], set_here: list[Setting]) -> str:
    """How the address of rank 0 was given, and is to be given."""
    if any(one.name in ("MASTER_ADDR", "PET_MASTER_ADDR") for one in set_here):
        return "export MASTER_ADDR="
    launcher = next((one.launcher for one in started if one.master), "")
    if "accelerate" in launcher:
        return "--main_process_ip="
    return "--master_addr=" if "deepspeed" in launcher else "--master-addr= (or --rdzv-endpoint=) "


class FewerGpusThanRanks(LaunchCheck):
    """Compares each launch with the GPUs that are visible to it; outside of shells lines of a file have no order."""

    name: ClassVar[str] = "gpus_of_launch"
    area: ClassVar[Area] = "advice"
    looks_for: ClassVar[str] = "in launch scripts: fewer GPUs in CUDA_VISIBLE_DEVICES than ranks that are started"

    def of_part(
        self, surroundings: Surroundings, path: Path, part: Part, started: list[LaunchCommand]
    ) -> Iterator[FindingRecord]:
        """Given a part of a file and what it starts, yield a finding for each launch with more ranks a node than GPUs
        it can see."""
        # In YAML and Dockerfiles the order of lines says nothing.
        said = [one for one in settings_of(part) if one.name == "CUDA_VISIBLE_DEVICES"]
        for launch in started:
            if launch.visible is None and said and not path.name.endswith(_SHELLS):
                names = tuple(one for one in said[-1].value.split(",") if one)
                launch = launch._replace(visible=names, visible_line=said[-1].line)
            yield from self._launch(path, launch)

    def _launch(self, path: Path, launch: LaunchCommand) -> Iterator[FindingRecord]:
        ranks, visible = launch.local_ranks, launch.visible
        if ranks is None or visible is None or not visible or len(visible) >= ranks:
            return
        names = ",".join(visible)
        yield finding(
            self, "warning" if launch.ignores_visible else "error", f"{path}:{launch.line}",
            seen=f"{count(ranks, 'rank')} are started, and CUDA_VISIBLE_DEVICES={names} (line {launch.visible_line}) "
            f"names {count(len(visible), 'GPU')}.",
            why="DeepSpeed's launcher ignores CUDA_VISIBLE_DEVICES where --include, --exclude or --num_gpus is given: "
            "the job takes GPUs that the variable keeps for others."
            if launch.ignores_visible
            else "cuda:LOCAL_RANK does not exist for some ranks (\"invalid device ordinal\"), or two of them share a "
            "GPU; the others wait for them.",
            remedy=f"say it once: --include localhost:{names} without CUDA_VISIBLE_DEVICES"
            if launch.ignores_visible
            else f"{launch.option(len(visible))}, or name {ranks} GPUs in CUDA_VISIBLE_DEVICES",
            source="DeepSpeed launcher/runner.py" if launch.ignores_visible else "CUDA programming guide",
        )  # fmt: skip
