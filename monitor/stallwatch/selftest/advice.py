"""What to do about a step that did not end: the program is this test's own and right, so advice is about the node."""

import re
from typing import Final

from msgspec.structs import replace

from stallwatch.model.verdict import Verdict

# Causes that lie in what a program calls, and where: in this test's own program they are the node's doing.
_OF_PROGRAMS: Final = frozenset((
    "not_entered", "collective_mismatch", "group_order", "p2p_unmatched", "data_exhausted", "rank_raised", "waiting",
    "undecided", "slow_rank",
))  # fmt: skip
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
    if verdict.cause in _OF_PROGRAMS or not steps:
        # What names a process, a file system or a device of the node stays.
        steps = [step for step in steps if re.search(r"\bpid \d|/proc/|nvidia-smi|mount|dmesg", step)][:1]
        steps += _ABOUT_NODES
    return replace(verdict, next_steps=tuple(steps[:3]))
