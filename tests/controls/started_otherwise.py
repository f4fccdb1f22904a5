"""Starts the ranks of a control as people do who use no launcher of torch's.

    python tests/controls/started_otherwise.py spawn|fork|srun PROGRAM NAME

`spawn` and `fork` are `torch.multiprocessing`'s, in which a rank's variables are set by itself and are not in its
process's environment; `srun` starts programs that know Slurm's variables alone.
"""

import os
import runpy
import subprocess
import sys

from tests.bench.jobs import free_port

RANKS = int(os.environ.get("CONTROL_RANKS", "4"))


def rank(number: int, port: int, program: str, name: str) -> None:
    """Be one rank, as a script does that is told its number by an argument."""
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    sys.argv = [program, name]
    runpy.run_path(program, run_name="__main__")


def main() -> int:
    kind, program, name = sys.argv[1:4]
    if kind == "task":  # of srun
        rank(int(os.environ["SLURM_PROCID"]), int(os.environ["CONTROL_PORT"]), program, name)
        return 0
    port = free_port()
    if kind == "srun":
        return _srun(port, program, name)
    import torch.multiprocessing as multiprocessing  # noqa: TID251

    multiprocessing.start_processes(rank, (port, program, name), nprocs=RANKS, start_method=kind)
    return 0


def _srun(port: int, program: str, name: str) -> int:
    tasks = []
    for number in range(RANKS):
        variables = {"SLURM_PROCID": number, "SLURM_LOCALID": number, "SLURM_NTASKS": RANKS, "CONTROL_PORT": port,
                     "SLURM_JOB_ID": 4711, "SLURM_STEP_ID": 0, "SLURM_NNODES": 1}  # fmt: skip
        environment = os.environ | {key: str(value) for key, value in variables.items()}
        tasks.append(subprocess.Popen([sys.executable, __file__, "task", program, name], env=environment))
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
