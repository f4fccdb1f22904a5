"""Everything that NVML says, asked once: `python -m stallwatch.node.nvml_once` prints a GpuState as JSON, and may be
lost."""

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stallwatch.encoding import json_of
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.model.gpu import GpuState
from stallwatch.model.reading import Known, Unavailable
from stallwatch.node.children import module_of_ours
from stallwatch.node.gpu_release import released
from stallwatch.node.nvml import read_state
from stallwatch.node.run_once import run_once

COMMAND = module_of_ours("stallwatch.node.nvml_once")
_NO_BINDING = "no binding"  # the first line of the answer when nothing can be read, and that is normal
_LONGEST_REASON = 300
_STATE = msgspec.json.Decoder(GpuState)


def ask(
    seconds: float, command: Sequence[str] = COMMAND, release_file: str | Path = ""
) -> Known[GpuState] | Unavailable:
    """Ask in a child, which is left behind when it hangs. Unavailable: no binding, no answer by the deadline, or by
    `release_file` (node.gpu_release) not to be asked now; a driver that refuses is an answer."""
    if (release := released(release_file)) is not None:
        return _unavailable(f"GPUs are {release.reason}")
    try:
        ended = run_once(command, seconds)
    except OSError as error:
        return _unavailable(f"NVML: {error.strerror}")
    if ended is None:
        return _unavailable(f"NVML has not answered for {seconds:g} s")
    said = ended.output.decode("utf-8", "replace")
    if said.startswith(_NO_BINDING):
        return _unavailable("no GPU is read: " + said.partition("\n")[2].strip())
    if ended.code != 0:
        return _unavailable(f"NVML failed: {(ended.last_words or f'exit code {ended.code}')[:_LONGEST_REASON]}")
    try:
        # A library that prints at import must not spoil the answer: it is the last line.
        return Known(_STATE.decode(said.splitlines()[-1]), time.monotonic_ns())
    except (*NOT_JSON, IndexError) as error:
        return _unavailable(f"NVML answered nonsense: {error}")


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(reason, time.monotonic_ns())


def main() -> None:
    """Read every GPU once and write that out."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        sys.stdout.write(f"{_NO_BINDING}\n{error}; pip install nvidia-ml-py")
        return
    sys.stdout.write(json_of(read_state(nvml)).decode())


if __name__ == "__main__":
    main()
