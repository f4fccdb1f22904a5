"""The preloaded process behind jobs.py: imports torch once, then forks ranks on request. Never initialises CUDA:
a fork cannot use what its parent did there."""

import atexit
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import torch  # noqa: TID251
import torch._dynamo  # noqa: TID251  the first optimizer would import it, 2 s a rank
import torch.distributed  # noqa: TID251
import torch.nn.parallel  # noqa: TID251
import torch.optim  # noqa: TID251
import torch.utils.data  # noqa: F401, TID251

CLEAN_UP_SECONDS = 0.1  # torchrun's own order of time, from the first failure to SIGTERM for the others
POLL_SECONDS = 0.02
ROOM = "FORK_SERVER_ROOM"  # a variable as long as those of a rank may be
_ENV_START = 47  # of /proc/<pid>/stat, behind the name


class RankProcesses:
    """The ranks of one job, of which this process is the parent."""

    def __init__(self, job: int, pids: list[int]) -> None:
        self.job = job
        self.alive = set(pids)
        self.terminate_at: float | None = None

    def reap(self) -> None:
        for pid in sorted(self.alive):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            self.alive.discard(pid)
            code = os.waitstatus_to_exitcode(status)
            tell({"what": "ended", "job": self.job, "pid": pid, "code": code})
            if code and self.terminate_at is None:
                self.terminate_at = time.monotonic() + CLEAN_UP_SECONDS
        if self.terminate_at is not None and time.monotonic() >= self.terminate_at:
            self.terminate_at = float("inf")
            for pid in self.alive:
                os.killpg(pid, signal.SIGTERM)


def tell(event: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(event) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def serve() -> None:
    jobs: list[RankProcesses] = []
    requests, received = sys.stdin.fileno(), b""  # not by sys.stdin: what waits in its buffer is not seen by select
    tell({"what": "ready"})
    while True:
        if select.select([requests], [], [], POLL_SECONDS if jobs else None)[0]:
            data = os.read(requests, 1 << 16)
            if not data:
                break
            *lines, received = (received + data).split(b"\n")
        else:
            lines = []
        for line in lines:
            request = json.loads(line)
            pids = [start_rank(rank, request) for rank in range(request["ranks"])]
            jobs.append(RankProcesses(request["job"], pids))
            tell({"what": "started", "job": request["job"], "pids": pids})
        for job in jobs:
            job.reap()
        jobs = [job for job in jobs if job.alive]
    for job in jobs:
        for pid in job.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def start_rank(rank: int, request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        become_rank(rank, request)
    return pid


def become_rank(rank: int, request: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.pop(ROOM, None)
        world = str(request["ranks"])
        os.environ.update(request["environment"])
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(request["port"]))
        # Jobs of several process namespaces beside each other: only the first would get NCCL's own port.
        os.environ.setdefault("NCCL_RAS_ADDR", f"localhost:{int(request['port']) + 1}")
        sys.path[:0] = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
        if request["shows_environment"]:
            show_environment()
        sys.argv = [request["program"], *request["arguments"]]
        code = run_program(request["program"])
    finally:
        os._exit(code)


def show_environment() -> None:
    """Have /proc/<pid>/environ say what this rank's variables are, as that of a rank says that was started by exec: the
    variables of the server's own start lie where the kernel reads them."""
    shown = dict(os.environ)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[_ENV_START]), int(fields[_ENV_START + 1])
    data = environment_block(shown, end - begin)
    ctypes.CDLL(None).clearenv()  # it points into what is written over
    ctypes.memmove(begin, data, len(data))
    for name, value in shown.items():
        os.putenv(name, value)


def environment_block(variables: Mapping[str, str], room: int) -> bytes:
    """Return the variables as the kernel shows them, filled up to `room` bytes. Raise ValueError where they need
    more."""
    data = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    if len(data) > room:
        raise ValueError(f"{len(data)} bytes of variables, and room for {room}")
    return data.ljust(room, b"\0")


def run_program(program: str) -> int:
    """What the interpreter does with a script, its ending included: exit hooks and the exception hook are run."""
    code = 0
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # as the interpreter itself: told, then exit code 1
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()  # what the hook's last words go by
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve()
