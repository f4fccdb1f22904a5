"""`python -m tests.simulator.semantics FOLDER`: bundles as other recorders would have written them, judged.

A recorder that tells no end may cost the verdict (`undecided`), and nothing else: no other cause, no innocent, never
healthy where it was not, never certain. Prints what is told otherwise; the exit code is 1 if anything is worse.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallwatch.bundle.reader import load
from stallwatch.diagnosis import judge
from stallwatch.diagnosis.recorder.operations import UNTOLD, completion_of, read_recorded_calls
from stallwatch.model.evidence import Evidence, GroupStatus, Operation, Recorder
from stallwatch.model.verdict import Verdict

Done = dict[tuple[int, int, int], bool]


def _done(recorder: Recorder) -> Done:
    """Which calls are over, by (group, collective number, transfer number)."""
    return {(node.pg_id, *node.key): node.done for node in read_recorded_calls(recorder)}


def _key(entry: Operation) -> tuple[int, int, int]:
    return entry.pg_id, entry.collective_seq_id, entry.p2p_seq_id


def _states(entry: Operation, done: bool) -> Operation:
    return msgspec.structs.replace(entry, state="completed" if done else "scheduled", retired=done)


def _retired(entry: Operation, done: bool) -> Operation:
    return msgspec.structs.replace(entry, state="scheduled", completed_ns=None, retired=done)


def _issued(entry: Operation, done: bool) -> Operation:
    return msgspec.structs.replace(
        entry, state="scheduled", completed_ns=None, retired=True, backend=f"{entry.backend}2"
    )


def _never(entry: Operation, done: bool) -> Operation:
    return msgspec.structs.replace(
        entry, state="scheduled", completed_ns=None, retired=False, backend=f"{entry.backend}2"
    )


def _unthreaded(entry: Operation, done: bool) -> Operation:
    return msgspec.structs.replace(entry, thread_id=None, thread_name=None)


def _hooked(entry: Operation, done: bool) -> Operation:
    return msgspec.structs.replace(_retired(entry, done), backend=f"{entry.backend}2")


def _ended_at_issue(status: GroupStatus) -> GroupStatus:
    return msgspec.structs.replace(status, completed=status.enqueued)


def _ended_never(status: GroupStatus) -> GroupStatus:
    return msgspec.structs.replace(status, completed=-1)


SEMANTICS: dict[
    str, tuple[Callable[[Operation, bool], Operation], Callable[[GroupStatus], GroupStatus] | None, str]
] = {
    "states": (_states, None, ""),
    "unthreaded": (_unthreaded, None, ""),  # torch 2.5 to 2.7: entries name no thread
    "retired": (_retired, None, ""),
    "hooked": (_hooked, None, "2"),  # as retired, by a back end of another name
    "issued": (_issued, _ended_at_issue, "2"),
    "never": (_never, _ended_never, "2"),
}
TELLING = frozenset({"states", "unthreaded", "retired", "hooked"})


def rewrite(recorder: Recorder, semantics: str) -> Recorder:
    """Given a dump, return it as a recorder of these semantics would have written it."""
    entry_as, status_as, suffix = SEMANTICS[semantics]
    done = _done(recorder)
    return msgspec.structs.replace(
        recorder,
        backend=recorder.backend + suffix if recorder.backend else "",
        operations=tuple(entry_as(entry, done.get(_key(entry), True)) for entry in recorder.operations),
        status=tuple(map(status_as, recorder.status)) if status_as else recorder.status,
    )


def rewritten(evidence: Evidence, semantics: str) -> Evidence:
    """Given evidence, return it with every dump rewritten."""
    ranks = tuple(
        msgspec.structs.replace(rank, recorders=tuple(rewrite(recorder, semantics) for recorder in rank.recorders))
        for rank in evidence.ranks
    )
    return msgspec.structs.replace(evidence, ranks=ranks)


def is_no_worse(before: Verdict, after: Verdict, semantics: str) -> bool:
    """The same is told, or that the evidence does not decide; nothing is certain by a recorder that tells no end."""
    if (after.cause, after.culprits) == (before.cause, before.culprits):
        return semantics in TELLING or after.confidence != "certain" or not _by_recorders(after)
    return after.cause == "undecided"


def _tells(recorders: Sequence[Recorder]) -> bool:
    return any(recorder.operations and completion_of((recorder,)) not in UNTOLD for recorder in recorders)


def _by_recorders(verdict: Verdict) -> bool:
    return verdict.cause not in ("rank_exited", "process_stopped", "rank_raised", "gpu_fault", "fabric_fault")


def main() -> int:
    worse = 0
    for bundle in sorted(path.parent for folder in sys.argv[1:] for path in Path(folder).glob("*/truth.json")):
        evidence = load([bundle])
        before = judge(evidence).verdicts[0]
        # What such a dump did not tell cannot be told in another way.
        for semantics in SEMANTICS if any(_tells(rank.recorders) for rank in evidence.ranks) else ():
            after = judge(rewritten(evidence, semantics)).verdicts[0]
            good = is_no_worse(before, after, semantics)
            worse += not good
            if not good or after.cause != before.cause:
                said = (f"{v.cause} {list(v.culprits)} {v.confidence}" for v in (before, after))
                print(f"{'ok' if good else 'WORSE':6}{bundle.name:30}{semantics:8}{' -> '.join(said)}", flush=True)
    print(f"worse {worse}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
