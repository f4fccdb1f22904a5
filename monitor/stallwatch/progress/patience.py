"""How long what a rank does may last before anybody is told."""

from stallwatch.model.verdict import Verdict, Where

# Storage, near or far, and compilers are silent for many seconds in health.
_SETTLING: frozenset[Where] = frozenset({"checkpoint", "filesystem", "dataloader", "socket", "compile", "init"})
# On the CPU all the time: it spins, or rank 0 builds an index. Nothing that can be read tells which.
_COMPUTING: frozenset[Where] = frozenset({"busy_loop"})


def settles(verdict: Verdict, phases: frozenset[int], working: frozenset[int]) -> bool:
    """Whether the culprit is where healthy ranks are silent for long, or a guess. `phases`: ranks inside a phase;
    `working`: ranks that stand still and compute."""
    unsure = verdict.confidence == "possible"
    # It sleeps, or waits for a program, at both looks, and yet works in between: an evaluation, a retry, a converter.
    busy = verdict.where == "user_code" and bool(set(verdict.culprits) & working)
    return unsure or busy or verdict.where in _SETTLING or any(rank in phases for rank in verdict.culprits)


def computes(verdict: Verdict) -> bool:
    return verdict.where in _COMPUTING
