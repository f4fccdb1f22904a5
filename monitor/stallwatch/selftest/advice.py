"""What to do about a step that did not end: the program is this test's own and right, so advice is about the node."""

import re
from typing import Final

from msgspec.structs import replace

from stallwatch.model.verdict import Verdict, WhenOver
from stallwatch.selftest.result import NodeFinding
from stallwatch.selftest.worker.step_lines import NO_TORCH

# Words of advice about code, and lines of it.
_ABOUT_CODE: Final = re.compile(
    r"\.py\b|\bbeat\.|\bscript\b|\bin the job\b|new_group|init_process_group|TORCH_DISTRIBUTED_DEBUG|`if\b",
    re.IGNORECASE,
)
_ABOUT_NODES: Final = (
    "Run `stallwatch doctor` on this node: it names wrong interfaces, limits, ports and GPUs.",
    "Run `stallwatch selftest --bisect`: it says which ranks, which GPUs and which path of communication fail.",
    "Compare with another node: a step that fails here alone is this node's hardware, driver or limits.",
)


def about_the_node(verdict: Verdict) -> Verdict:
    """Given the verdict on the test's own ranks, return it without steps that speak of their program."""
    steps = [step for step in verdict.next_steps if not _ABOUT_CODE.search(step)]
    if verdict.traits.lies_in == "program" or not steps:  # in this test's own program it is the node's doing
        # What names a process, a file system or a device of the node stays.
        steps = [step for step in steps if re.search(r"\bpid \d|/proc/|nvidia-smi|mount|dmesg", step)][:1]
        steps += _ABOUT_NODES
    return replace(verdict, next_steps=tuple(steps[:3]), when_over=WhenOver())


# What Python says where torch cannot be imported: why, and what to do.
_IMPORTS: Final = (
    (
        r"undefined symbol: nccl",
        "Another NCCL than torch's own is loaded before it.",
        "take entries with a libnccl.so out of LD_LIBRARY_PATH and LD_PRELOAD (ldconfig -p | grep nccl)",
    ),
    (
        r"undefined symbol|version `\S+' not found",
        "A library of another version is loaded before torch's own, or torch was built for another system.",
        "try it with LD_LIBRARY_PATH and LD_PRELOAD unset; then install torch anew into a fresh environment",
    ),
    (
        r"cannot open shared object file|DLL load failed",
        "A library that this torch was built with is not installed, or not where it is looked for.",
        "install torch anew (pip install --force-reinstall torch), which brings its CUDA libraries; is the driver's "
        "library there: ldconfig -p | grep libcuda.so",
    ),
    (
        r"must be OFF, INFO, or DETAIL",
        "torch refuses the value of TORCH_DISTRIBUTED_DEBUG when it is imported.",
        "unset TORCH_DISTRIBUTED_DEBUG",
    ),
    (r"No module named", "A package that torch needs is missing, or a folder named torch hides it.",
     "python -m pip check; look for a torch/ or torch.py in the working directory and in PYTHONPATH"),
)  # fmt: skip


def of_import(problem: str, python: str) -> NodeFinding | None:
    """Given why the test did not begin, return what the node's checks cannot see, for they import no torch."""
    _, mark, said = problem.partition(f"{NO_TORCH}: ")
    if not mark:
        return None
    text = said.splitlines()[0] if said else ""
    why, remedy = next(
        ((why, remedy) for pattern, why, remedy in _IMPORTS if re.search(pattern, text)),
        ("Training cannot start in this environment either.", "run it by hand and read the whole traceback"),
    )
    by_hand = f"{python} -c 'import torch.distributed'"
    return NodeFinding(
        "torch", "error", python, f"torch cannot be imported: {text}", why, f"{remedy}; by hand: {by_hand}"
    )
