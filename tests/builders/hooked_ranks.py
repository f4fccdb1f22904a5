"""A job of plain processes with the hook, without torch: each has what a launcher gives a rank."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


class HookedRanks:
    """Ranks of one job, which are this process' children. Each prints "ready" once its hook is attached."""

    def __init__(
        self,
        command: Sequence[str],
        ranks: int,
        job: str,
        directory: Path,
        environment: Mapping[str, str],
        stderr: int | IO[str] | None = None,
    ) -> None:
        """`directory`: where the hooks write; `environment`: all that they have beside a rank's own variables."""
        self.job = job
        self.processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={
                    **environment,
                    "STALLWATCH_DIR": str(directory),
                    "STALLWATCH_JOB": job,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                },
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def send(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
