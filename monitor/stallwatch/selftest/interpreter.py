"""The training interpreter: which Python has torch, and how many GPUs it sees. Asked in a child with a deadline."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from stallwatch.errors import UsageError
from stallwatch.node.run_once import run_once
from stallwatch.selftest.result import OwnFailure
from stallwatch.selftest.worker.step_lines import NO_TORCH

_FIND_SECONDS = 20.0
_COUNT_SECONDS = 90.0  # imports torch, from a slow file system maybe, and starts CUDA
_FIND = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('torch') else 3)"
_COUNT = (
    "import json, torch; print(json.dumps([torch.cuda.device_count(), torch.distributed.is_nccl_available(), "
    "bool(torch.version.cuda or getattr(torch.version, 'hip', None))]))"
)
# Device nodes of NVIDIA, AMD and WSL: without one of them no torch sees a GPU, and it need not be asked.
_DEVICE_NODES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")


class Gpus(msgspec.Struct, frozen=True):
    """How many GPUs torch sees in the interpreter of training."""

    count: int
    problem: str = ""  # torch could not say


def find_python(wanted: str | None, environment: Mapping[str, str]) -> str:
    """Return an interpreter that has torch: the wanted one, else ours, else PATH's python3. Raise UsageError."""
    candidates = [wanted] if wanted else [sys.executable, shutil.which("python3", path=environment.get("PATH"))]
    for candidate in dict.fromkeys(filter(None, candidates)):
        if _has_torch(candidate, environment):
            return candidate
    raise UsageError(
        f"no torch in {' or '.join(dict.fromkeys(filter(None, candidates)))}",
        "Give the interpreter that your training runs with: --python /path/to/env/bin/python",
    )


def _has_torch(python: str, environment: Mapping[str, str]) -> bool:
    try:
        ended = run_once([python, "-c", _FIND], _FIND_SECONDS, environment=environment)
    except OSError as error:
        raise UsageError(f"{python}: {error.strerror}", "Give an interpreter: --python PATH") from error
    if ended is None:
        raise OwnFailure(
            f"{python} did not start within {_FIND_SECONDS:.0f} s", "Is its file system slow or gone? Try it by hand."
        )
    return ended.code == 0


def may_have_gpus() -> bool:
    """Whether a GPU's device node is here, so that it pays to import torch and ask."""
    return any(os.path.exists(node) for node in _DEVICE_NODES)


def count_gpus(python: str, environment: Mapping[str, str]) -> Gpus:
    """Ask torch. A driver that does not answer is a fact about the node, and comes back as a problem."""
    ended = run_once([python, "-c", _COUNT], _COUNT_SECONDS, environment=environment)
    if ended is None:
        return Gpus(0, f"torch did not say within {_COUNT_SECONDS:.0f} s how many GPUs there are")
    try:
        count, has_nccl, wants_gpus = json.loads(ended.output.splitlines()[-1])
    except (ValueError, IndexError):
        raise OwnFailure(f"{python} {NO_TORCH}: {ended.last_words}", "Repair that environment first.") from None
    if wants_gpus and not count and environment.get("CUDA_VISIBLE_DEVICES") not in ("", "-1"):
        # A node that lost its GPUs must not pass as one without.
        return Gpus(0, "this node has a GPU driver, and torch sees no GPU: see `nvidia-smi` and CUDA_VISIBLE_DEVICES")
    return Gpus(int(count) if has_nccl else 0)


def link_to_package(folder: Path) -> Path:
    """Make a folder that holds this stallwatch alone, for PYTHONPATH: the rest of our environment, made for another
    Python maybe, must not come before the packages of the training interpreter."""
    folder.mkdir()
    (folder / "stallwatch").symlink_to(Path(__file__).resolve().parents[1], target_is_directory=True)
    return folder
