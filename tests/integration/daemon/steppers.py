"""Ranks without torch: plain processes with the hook that step until they are told to end."""

import os
import subprocess
import sys
from pathlib import Path

SOURCE = str(Path(__file__).parents[3] / "monitor")
PROGRAM = """
import sys, time
import stallwatch
beat = stallwatch.attach()
assert beat, "the hook did not attach"
print("ready", flush=True)
while True:
    beat.step()
    time.sleep(0.05)
"""


class Steppers:
    """A job of such ranks, which are this process' children."""

    def __init__(self, directory: Path, ranks: int, job: str, **environment: str) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=os.environ
                | {
                    "PYTHONPATH": SOURCE,
                    "STALLWATCH_DIR": str(directory),
                    "STALLWATCH_JOB": job,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": "29500",
                }
                | environment,
                start_new_session=True,
            )
            for rank in range(ranks)
        ]
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
