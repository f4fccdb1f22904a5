"""Programs that start the ranks of a job: what they are called, in processes, in scripts and in what they print."""

from typing import NamedTuple


class Launcher(NamedTuple):
    """One launcher, or its kin of one command line."""

    name: str
    programs: tuple[str, ...]
    ranks_option: str  # how it is told the number of ranks of a node
    subcommand: str = ""  # a regular expression of what makes the program a launcher: `accelerate launch`
    modules: tuple[str, ...] = ()  # `python -m …`
    code: tuple[str, ...] = ()  # prefixes of modules that run in the launcher itself
    in_python: bool = False  # with torch loaded and, under srun or mpirun, variables of a rank of its own
    told_by_hosts: bool = False  # its number of ranks is of all hosts together


LAUNCHERS = (
    Launcher(
        "accelerate", ("accelerate",), "--num_processes={}", r"(?:-|\s+)launch", in_python=True,
        modules=("accelerate.commands.launch", "accelerate.commands.accelerate_cli"), code=("accelerate.commands",),
    ),
    Launcher(
        "deepspeed", ("deepspeed",), "--num_gpus={}", in_python=True,
        modules=("deepspeed.launcher.runner", "deepspeed.launcher.launch"), code=("deepspeed.launcher",),
    ),
    Launcher("srun", ("srun",), "--ntasks-per-node={}"),
    # Open MPI to 4 and 5, MPICH, Intel MPI.
    Launcher("mpirun", ("mpirun", "mpiexec", "orterun", "prterun"), "-np {}", told_by_hosts=True),
    Launcher("horovodrun", ("horovodrun",), "-np {}", told_by_hosts=True),
    Launcher("composer", ("composer",), "-n {}", in_python=True),
    Launcher("colossalai", ("colossalai",), "--nproc-per-node={}", r"\s+run"),
    Launcher("fabric", ("fabric", "lightning"), "--devices={}", r"\s+run(?:\s+model)?", in_python=True),
    Launcher(
        "torchrun", ("torchrun",), "--nproc-per-node={}", in_python=True,
        modules=("torch.distributed.run", "torch.distributed.launch"),
        code=("torch.distributed.run", "torch.distributed.elastic", "torch.distributed.launch", "torchrun"),
    ),
)  # fmt: skip
PROGRAMS = tuple(program for launcher in LAUNCHERS for program in launcher.programs)
MODULES = tuple(module for launcher in LAUNCHERS for module in launcher.modules)
MPI_PROGRAMS = next(launcher.programs for launcher in LAUNCHERS if launcher.name == "mpirun")


def launcher_of_command(command: str) -> Launcher:
    """Given the beginning of a command, "python -m accelerate.commands.launch", return the launcher that it calls;
    torchrun where it names none."""
    named = (one for one in LAUNCHERS if any(name in command for name in (*one.programs, *one.modules)))
    return next(named, LAUNCHERS[-1])
