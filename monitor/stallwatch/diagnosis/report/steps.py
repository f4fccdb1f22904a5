"""What to do next, specific to what was found: two to four steps with real hosts and pids.

Every step looks or repairs. None trades one fault for another: nothing here disables transports for good, turns
blocking wait on, switches a firewall or SELinux off, or kills by name.
"""

from collections.abc import Mapping
from typing import Protocol

from stallwatch.diagnosis.activity import RankActivity
from stallwatch.diagnosis.logs.remedies_by_text import Words
from stallwatch.diagnosis.report.step_context import UNKNOWN_PID, StepContext, step_context
from stallwatch.diagnosis.report.steps_at_a_store import rendezvous
from stallwatch.diagnosis.report.steps_by_cause import (
    comm_stuck,
    exhausted,
    exited,
    fabric,
    gpu_fault,
    gpu_kernel,
    group_order,
    mismatch,
    p2p,
    raised,
    ran_past,
    slow,
    stopped,
)
from stallwatch.diagnosis.report.steps_by_place import stuck_steps
from stallwatch.diagnosis.step import NextStep, Step, of_the_living, starts_job, text_of
from stallwatch.formats.rank_ranges import rank_ranges
from stallwatch.model.verdict import Verdict

# What to do with the job is asked first: may it be ended, and when does torch end it by itself?


class HasVerdicts(Protocol):
    """A report, or a document that holds one."""

    @property
    def evidence_complete(self) -> bool:
        """False while evidence is still being taken."""

    @property
    def deadline(self) -> str | None:
        """When torch's own time-out ends the job, as the evidence shows it; None: it does not."""

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The primary one first."""


def deadline(report: HasVerdicts) -> str | None:
    """When torch's own timeout ends the job; None where nothing says so, or where the job moves: what was pending at
    the look has long been completed."""
    verdict = _first(report)
    return None if verdict is not None and verdict.traits.flows else report.deadline


def safety(report: HasVerdicts) -> str:
    """Whether the job may be ended without losing evidence, and whether it has to be."""
    if not report.evidence_complete:
        return "evidence is not complete: ending the job now loses some of it"
    verdict = _first(report)
    if verdict is not None and verdict.traits.flows:
        return "evidence complete; the job moves, nothing has to be ended"
    if verdict is not None and verdict.cause == "waiting":
        return "evidence complete; the wait may end by itself"
    return "evidence complete, safe to kill"


def _first(report: HasVerdicts) -> Verdict | None:
    return report.verdicts[0] if report.verdicts else None


# Steps where the line of a log tells the cause: its own remedy, and what fits after it. What was not seen (a process,
# a stack, a driver's counters) is not asked for.


_GIVE_ALL = (
    "Give `stallwatch analyze` the logs of all ranks and of the launcher together; `torchrun --log-dir DIR --redirects "
    "3`, `srun --output=%j-%t.log` or `mpirun --output-filename DIR` keeps one a rank."
)


def by_line(who: StepContext, words: Words, activities: Mapping[int, RankActivity]) -> list[NextStep]:
    """Given the words of the line that tells the cause, return its steps."""
    mend = of_the_living(words.remedy) if words.of_the_living else words.remedy
    match who.verdict.cause:
        case "job_ended":
            return [mend]
        case "undecided":
            return [mend, *([] if anybody_seen(activities) else more_logs(who, words.remedy))]
        case "collective_mismatch":
            return [mend, *_sides(who), _AGAIN]
        case _:
            return [mend, _then(who, words)]


def anybody_seen(activities: Mapping[int, RankActivity]) -> bool:
    """Whether a process or a stack of any rank was looked at: else there are logs alone."""
    return any(activity.known for activity in activities.values())


def more_logs(who: StepContext, said: str = "") -> list[NextStep]:
    """Steps where logs alone are at hand, and do not decide. What `said` says, or the last step, is not said again."""
    missing = [text.rstrip(".") for text in who.verdict.missing[:1] if not text.startswith("the logs of all ranks")]
    missing = [text for text in missing if not ("flight recorder" in text and "flight recorder" in said)]
    return [*(of_the_living(f"Missing: {lacking}.") for lacking in missing), _GIVE_ALL]


_AGAIN = "Mend the program before it starts again: it comes back at the same call."


def _sides(who: StepContext) -> list[NextStep]:
    if who.rank is None or who.verdict.mismatch is None:
        return ["Compare the code paths of these ranks up to that call: each one's own traceback shows its line."]
    return [f"Compare the code paths of {who.name} and of another rank up to the call{who.differs}."]


def _then(who: StepContext, words: Words) -> Step:
    if words.then == "without_node":
        return starts_job(
            f"Leave {who.host} out until that is mended, and start the job elsewhere from its last checkpoint."
        )
    how = ": it had not begun to train." if words.then == "start" else " from its last checkpoint."
    return starts_job(
        f"Stop what still runs of the job, mend this and start it again{how}", left=f"Mend this and start it again{how}"
    )


MAXIMUM_STEPS = 4


def next_steps(
    verdict: Verdict, activities: Mapping[int, RankActivity], words: Words | None = None
) -> tuple[NextStep, ...]:
    """Given a verdict and what the ranks do, return one to four steps, the most telling first. `words`: of the line of
    a log that tells the cause, which knows more than what holds for every such cause."""
    who = step_context(verdict, activities)
    steps = by_line(who, words, activities) if words else []
    if not words or (verdict.cause == "undecided" and len(steps) == 1):
        steps += _steps(who, activities)
    others = len(verdict.culprits) - 1
    if others > 0 and steps and who.pid in text_of(steps[0]) and who.pid != UNKNOWN_PID:
        steps[0] += f" (the same holds for {others} more: ranks {rank_ranges(verdict.culprits)})"
    return tuple(steps[:MAXIMUM_STEPS])


def _steps(who: StepContext, activities: Mapping[int, RankActivity]) -> list[NextStep]:
    match who.verdict.cause:
        case "not_entered" | "slow_rank" if who.activity and who.activity.process.tracer_pid:
            debugger = who.activity.process.tracer_pid
            return [of_the_living(f"On {who.host} a debugger (pid {debugger}) holds pid {who.pid}: let it continue.")]
        case "not_entered":
            return _not_entered(who)
        case "collective_mismatch":
            return mismatch(who)
        case "data_exhausted":
            return exhausted(who)
        case "group_order":
            return group_order(who)
        case "p2p_unmatched":
            return p2p(who)
        case "rank_exited":
            return exited(who)
        case "rank_raised":
            return raised(who)
        case "process_stopped":
            return stopped(who)
        case "init_missing":
            return _init_missing(who)
        case "gpu_kernel_stuck":
            return gpu_kernel(who)
        case "gpu_fault":
            return gpu_fault(who)
        case "fabric_fault":
            return fabric(who)
        case "comm_stuck":
            return comm_stuck()
        case "slow_rank":
            return slow(who)
        case "waiting":
            return _waiting(who)
        case "undecided":
            if activities and all(activity.place.in_store_or_init for activity in activities.values()):
                return rendezvous()
            only_logs = not activities and who.verdict.because
            return _unknown_lines(who) if only_logs else _undecided_steps(who)
        case _:
            return []  # nothing to do, or its claim brings what there is (Claim.steps)


def _unknown_lines(who: StepContext) -> list[NextStep]:
    places = ", ".join(dict.fromkeys(fact.source for fact in who.verdict.because[:3]))
    return [f"Read these lines and what stands around them: {places}.", *more_logs(who)]


def _not_entered(who: StepContext) -> list[NextStep]:
    if who.activity and who.activity.progress.moving:
        return ran_past(who)  # what moves and is told as absent has gone past the call
    where = who.process.where or (who.activity.place.where if who.activity else None) or who.verdict.where or "unknown"
    frame = who.process.frame or (who.activity.place.frame if who.activity else None)
    return stuck_steps(where, who, frame)


def _init_missing(who: StepContext) -> list[NextStep]:
    where = who.process.where or (who.activity.place.where if who.activity else None)
    ranks = rank_ranges(who.verdict.culprits)
    missing = f"ranks {ranks}" if len(who.verdict.culprits) > 1 else who.name
    if who.activity and who.activity.known and where and where not in ("unknown", "init", "store"):
        frame = who.process.frame or who.activity.place.frame
        return stuck_steps(where, who, frame)
    return [
        f"Check that {missing} started at all: the launcher's log on that node, and `--nnodes`, `--node-rank` and "
        "WORLD_SIZE against what runs.",
        of_the_living(
            "From that node reach the rendezvous: `getent hosts $MASTER_ADDR` and `nc -vz $MASTER_ADDR $MASTER_PORT`."
        ),
        "Run `stallwatch doctor` there: it names wrong interfaces, names that resolve to loopback and ports in use.",
    ]


def _waiting(who: StepContext) -> list[NextStep]:
    frame = who.process.frame
    line = who.place(frame).clause(" (it is at", with_pid=False) if frame else ""
    return [
        of_the_living(
            f"Wait: {who.name} makes progress{line and f'{line})'}."
            if who.rank is not None
            else "Wait: nothing is stuck yet."
        ),
        'If this is normal, name it in the job: `with beat.phase("checkpoint"):` gives it patience of its own.',
        "If it comes near torch's own time-out, raise the timeout of init_process_group or new_group for that "
        "operation.",
    ]


def _undecided_steps(who: StepContext) -> list[NextStep]:
    return [
        of_the_living("Take more evidence now: `stallwatch capture`, then `stallwatch analyze` on the incident."),
        *(of_the_living(f"Missing: {lacking}.") for lacking in (text.rstrip(".") for text in who.verdict.missing[:2])),
        "Read the merged stacks: the branch with the fewest ranks is where to look first.",
    ]
