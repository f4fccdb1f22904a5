"""The demo's faults and their truth. Imported by the demo and its tests alone: neither job nor daemon sees it."""

from typing import Literal

import msgspec

from stallwatch.demo.draw import drawn_rank
from stallwatch.errors import UsageError
from stallwatch.model.verdict import Cause, Verdict, Where

Culprit = Literal["drawn", "rank 0", "nobody"]


class Fault(msgspec.Struct, frozen=True):
    """One fault that the demo can make, and which verdicts of it are right."""

    name: str
    program: str  # a file of programs/
    sentence: str
    causes: tuple[Cause, ...]  # the exact one first, then others that say the same; empty: nothing is wrong
    culprit: Culprit = "drawn"
    where: tuple[Where, ...] = ()  # what `where` may say; empty: not asked
    everybody: bool = False  # a cycle: naming all its members is right, too
    # A send without its recv: naming both ends is right, too, and nobody where no recorder holds the peers (gloo's).
    neighbour: bool = False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is wrong in this job: every verdict would be a false alarm."""
        return not self.causes


FAULTS: tuple[Fault, ...] = (
    Fault("lock", "feature_cache", "a lock is never given back", ("not_entered",), where=("lock",)),
    Fault("sleep", "remote_shards", "a retry sleeps for an hour", ("not_entered",), where=("user_code",)),
    Fault("gil", "native_tokenizer", "a C call keeps the GIL", ("not_entered",), where=("gil",)),
    Fault("dataloader", "sample_files", "a data loader worker is stuck", ("not_entered",), where=("dataloader",)),
    Fault(
        "checkpoint",
        "save_often",
        "rank 0 cannot finish writing a checkpoint",
        ("not_entered",),
        culprit="rank 0",
        where=("checkpoint", "filesystem"),
    ),
    Fault("skip", "nan_guard", "one rank leaves out a collective", ("collective_mismatch", "not_entered")),
    Fault("wrong_op", "loss_report", "one rank calls another operation", ("collective_mismatch",)),
    Fault("group_order", "two_groups", "one rank uses two groups in reversed order", ("group_order",), everybody=True),
    Fault("killed", "memory_hungry", "a rank is killed", ("rank_exited",)),
    Fault("stopped", "job_control", "a rank is stopped", ("process_stopped",)),
    Fault(
        "exhausted",
        "uneven_shards",
        "one rank runs out of data and leaves its loop",
        ("data_exhausted", "collective_mismatch"),
    ),
    Fault("absent", "license_check", "one rank never joins the job", ("init_missing",), where=("socket", "init")),
    Fault(
        "p2p",
        "halo_exchange",
        "a receive in a batch of P2P has no sender",
        ("p2p_unmatched", "not_entered"),
        neighbour=True,
    ),
    Fault("slow", "long_documents", "one rank falls behind, the job goes on", ("slow_rank",)),
    Fault("none", "whole_run", "nothing: a slow first step, a long evaluation, a checkpoint", (), culprit="nobody"),
)


def find(name: str) -> Fault:
    """Raise UsageError for a name that is not in the list."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    names = ", ".join(fault.name for fault in FAULTS)
    raise UsageError(f"no fault is called {name!r}", f"`stallwatch demo --list` says what each is: {names}.")


def culprits(fault: Fault, seed: int, ranks: int) -> tuple[int, ...]:
    """The ranks that are to blame in a job of this seed and size."""
    if fault.culprit == "nobody":
        return ()
    return (0,) if fault.culprit == "rank 0" else (drawn_rank(seed, ranks),)


def agrees(fault: Fault, seed: int, ranks: int, verdict: Verdict | None) -> bool:
    """Whether the verdict's cause and culprits are the truth; no verdict agrees with nothing having happened."""
    if verdict is None or fault.is_quiet:
        return verdict is None and fault.is_quiet
    guilty = culprits(fault, seed, ranks)
    right = {guilty}
    if fault.everybody:
        right.add(tuple(range(ranks)))
    if fault.neighbour and verdict.cause == fault.causes[0]:
        right |= {tuple(sorted({guilty[0], (guilty[0] - 1) % ranks})), ()}
    return verdict.cause in fault.causes and verdict.culprits in right
