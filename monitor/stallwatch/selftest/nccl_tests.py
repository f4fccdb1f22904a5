"""NVIDIA's nccl-tests, where they are installed: all_reduce_perf on all GPUs, its own check on."""

import re
import shutil
from collections.abc import Mapping

from stallwatch.node.run_once import run_once
from stallwatch.selftest.result import NcclTests

_SECONDS = 90.0
_WRONG = re.compile(r"^# Out of bounds values : (\d+)", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9.]+)", re.MULTILINE)
_TAIL_LINES = 3


def find(environment: Mapping[str, str]) -> str | None:
    """Return the path of all_reduce_perf on this environment's PATH, None where it is not installed."""
    return shutil.which("all_reduce_perf", path=environment.get("PATH"))


def run(program: str, gpus: int, most_bytes: int, environment: Mapping[str, str]) -> NcclTests:
    """One process for all GPUs, as it does without MPI."""
    command = [program, "-b", "8", "-e", str(most_bytes), "-f", "8", "-g", str(gpus), "-c", "1"]
    try:
        ended = run_once(command, _SECONDS, environment=environment)
    except OSError as error:
        return NcclTests(True, None, f"{program} could not be started: {error.strerror}")
    if ended is None:
        return NcclTests(False, None, f"{program} did not end within {_SECONDS:.0f} s")
    return read(ended.code, (ended.output + ended.errors).decode(errors="replace"))


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
