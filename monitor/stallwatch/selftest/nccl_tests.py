"""NVIDIA's nccl-tests, where they are installed: all_reduce_perf on all GPUs, its own check on."""

import re
import shutil
import subprocess
from collections.abc import Mapping

from stallwatch.selftest.result import NcclTests

_SECONDS = 90.0
_WRONG = re.compile(r"^# Out of bounds values : (\d+)", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9.]+)", re.MULTILINE)
_TAIL_LINES = 3


def find(environment: Mapping[str, str]) -> str | None:
    return shutil.which("all_reduce_perf", path=environment.get("PATH"))


def run(program: str, gpus: int, most_bytes: int, environment: Mapping[str, str]) -> NcclTests:
    """One process for all GPUs, as it does without MPI."""
    command = [program, "-b", "8", "-e", str(most_bytes), "-f", "8", "-g", str(gpus), "-c", "1"]
    try:
        done = subprocess.run(
            command, env=dict(environment), timeout=_SECONDS, capture_output=True, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return NcclTests(False, None, f"{program} did not end within {_SECONDS:.0f} s")
    except OSError as error:
        return NcclTests(True, None, f"{program} could not be started: {error.strerror}")
    return read(done.returncode, (done.stdout + done.stderr).decode(errors="replace"))


def read(exit_code: int, text: str) -> NcclTests:
    """Read what it printed. Its exit code alone decides where it printed no count of wrong values."""
    wrong, average = _WRONG.search(text), _AVERAGE.search(text)
    rate = int(float(average[1]) * 1e9) if average else None
    if wrong and int(wrong[1]):
        return NcclTests(False, rate, f"{wrong[1]} values out of bounds")
    if exit_code:
        last = " / ".join(text.strip().splitlines()[-_TAIL_LINES:])
        return NcclTests(False, rate, f"exit code {exit_code}: {last}")
    return NcclTests(True, rate)
