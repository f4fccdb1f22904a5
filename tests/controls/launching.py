"""How a control is started: forked ranks, torchrun, torchrun in a person's terminal, or agents that come and go."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from stallwatch.demo.job import end_processes
from tests.bench import jobs

_ROOT = Path(__file__).parents[2]
_CONTROL_Z = b"\x1a"
STOP_SECONDS = 5.0


def search_path() -> str:
    """Return the PYTHONPATH of a rank, which is a script, and perhaps nothing is installed: the two roots of the
    repository, and what ours says."""
    return os.pathsep.join(filter(None, (str(_ROOT), str(_ROOT / "monitor"), os.environ.get("PYTHONPATH"))))


class Running(Protocol):
    @property
    def pids(self) -> Sequence[int]:
        """Its ranks' processes, by rank; empty until they are there."""
        ...

    def exit_code(self) -> int | None: ...

    def terminate(self) -> None:
        """End it as a scheduler does."""
        ...

    def type(self, text: bytes) -> None:
        """What a person types in its terminal; nothing where it has none."""
        ...

    def stop(self) -> None: ...


class Forked:
    """Ranks of the fork server: they start within a second."""

    def __init__(self, job: jobs.ForkedJob) -> None:
        self._job = job

    @property
    def pids(self) -> Sequence[int]:
        return self._job.pids

    def exit_code(self) -> int | None:
        return self._job.exit_code()

    def terminate(self) -> None:
        for pid in self._job.pids:
            os.kill(pid, signal.SIGTERM)

    def type(self, text: bytes) -> None:
        pass

    def stop(self) -> None:
        self._job.stop()


class Torchrun:
    """One torchrun; `options` are its own."""

    def __init__(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        options: Sequence[str],
    ) -> None:
        self._command = self._command_of(program, options)
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("STALLWATCH_")} | {
            "OMP_NUM_THREADS": "1",
            **environment,
        }
        self._seen: set[psutil.Process] = set()
        self._agent = self._start(log)

    def _command_of(self, program: Sequence[str], options: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "torch.distributed.run", *options, *program]

    def _start(self, log: Path) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def agent_pid(self) -> int:
        return self._agent.pid

    @property
    def pids(self) -> Sequence[int]:
        self._look()
        by_rank = {}
        for process in self._seen:
            with contextlib.suppress(psutil.Error):
                variables, parent = process.environ(), process.parent()
                # Helpers of a rank have its variables too: the rank is the agent's own child.
                if "LOCAL_RANK" in variables and parent and "torch.distributed.run" in parent.cmdline():
                    by_rank[int(variables["RANK"])] = process.pid
        return [pid for _, pid in sorted(by_rank.items())]

    def exit_code(self) -> int | None:
        self._look()
        return self._agent.poll()

    def terminate(self) -> None:
        self._agent.terminate()

    def type(self, text: bytes) -> None:
        pass

    def hang_up(self) -> None:
        """Close its terminal, where it has one."""

    def stop(self) -> None:
        self._look()
        self._agent.kill()
        end_processes(self._seen)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(STOP_SECONDS)

    def _look(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._seen.update(psutil.Process(self._agent.pid).children(recursive=True))


class StartedOtherwise(Torchrun):
    """By `started_otherwise.py`, whose way is the option."""

    def _command_of(self, program: Sequence[str], options: Sequence[str]) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("started_otherwise.py")), *options, *program]


class InTerminal(Torchrun):
    """A person's shell in a terminal of its own, in which torchrun was typed."""

    def _start(self, log: Path) -> "subprocess.Popen[bytes]":
        self._terminal, its_end = pty.openpty()
        self._log = log
        shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
            env={**self._environment, "PS1": "$ ", "HISTFILE": "/dev/null"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(its_end)
        self._is_attached = True
        self._draining = threading.Thread(target=self._drain, daemon=True)
        self._draining.start()
        self.type(f"{shlex.join(self._command)}; echo ended=$?\n".encode())
        return shell

    def _drain(self) -> None:
        # A terminal that somebody reads is not hung up by closing it: the reader closes it.
        with self._log.open("ab") as log, contextlib.suppress(OSError):
            while self._is_attached:
                if not select.select([self._terminal], [], [], 0.2)[0]:
                    continue
                if not (data := os.read(self._terminal, 65536)):
                    break
                log.write(data)
                log.flush()
        os.close(self._terminal)

    def exit_code(self) -> int | None:
        self._look()
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        codes = [int(code) for code in re.findall(r"ended=(\d+)", text)]
        return next((code for code in codes if code != 128 + signal.SIGTSTP), None)

    def type(self, text: bytes) -> None:
        os.write(self._terminal, text)

    def suspend(self) -> None:
        self.type(_CONTROL_Z)

    def hang_up(self) -> None:
        self._is_attached = False
        self._draining.join()

    def stop(self) -> None:
        super().stop()
        self.hang_up()


class Elastic:
    """Two agents of one elastic job: the second joins later and leaves again; the first restarts its ranks then."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], folder: Path, name: str) -> None:
        self._launch = (program, environment)
        self._logs = [folder / f"{name}.log", folder / f"{name}-second.log"]
        self._options = [
            "--nnodes=1:2", "--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-id={name}",
            f"--rdzv-endpoint=127.0.0.1:{jobs.free_port()}", "--max-restarts=5", "--monitor-interval=0.5",
            "--rdzv-conf=last_call_timeout=2,join_timeout=120",
        ]  # fmt: skip
        self._agents = [self._agent()]

    def _agent(self) -> Torchrun:
        program, environment = self._launch
        return Torchrun(program, environment, self._logs[len(getattr(self, "_agents", ()))], self._options)

    @property
    def pids(self) -> Sequence[int]:
        return [pid for agent in self._agents for pid in agent.pids]

    def join(self) -> None:
        self._agents.append(self._agent())

    def leave(self) -> None:
        self._agents[1].terminate()

    def exit_code(self) -> int | None:
        return self._agents[0].exit_code()

    def terminate(self) -> None:
        for agent in self._agents:
            agent.terminate()

    def type(self, text: bytes) -> None:
        pass

    def stop(self) -> None:
        for agent in self._agents:
            agent.stop()
