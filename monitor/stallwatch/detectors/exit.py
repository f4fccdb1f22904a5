"""A rank that ended while others of its job live on: the first to go, told from the clean-up that follows it."""

import msgspec

from stallwatch.clock import SECOND_NS
from stallwatch.config_sections import TellSection
from stallwatch.detectors.history import NodeHistory, RankHistory
from stallwatch.model.finding import Finding
from stallwatch.model.process import SHELL_SIGNAL
from stallwatch.model.signals import ENDING, OWN_FAULTS, signal_name
from stallwatch.model.snapshot import JobKey, ProcessEnd
from stallwatch.progress.ticks import RAN_AHEAD_NS
from stallwatch.progress.usual_pace import STANDS_NS, WINDOW_NS


class DeathsState(msgspec.Struct, frozen=True):
    """What is remembered of jobs that ended."""

    abnormal: tuple[JobKey, ...] = ()  # jobs whose first end was one that others outlived
    passed: tuple[tuple[JobKey, int], ...] = ()  # the last end that a job has gone on after (CLOCK_MONOTONIC)


class ExitDetector:
    """An abnormal end is a finding at once. A normal one (exit 0, SIGTERM) means that the job is ending: it becomes
    a finding only when others are still here after `tell.ending_seconds`, and have not gone on without it: a world that
    shrinks needs nobody who has left, and where it stands later is another matter."""

    name = "exit"

    def __init__(self, tell: TellSection) -> None:
        self._ending_seconds = tell.ending_seconds

    def start(self) -> DeathsState:
        """The state before the first tick: no end was abnormal."""
        return DeathsState()

    def step(self, state: DeathsState, seen: NodeHistory) -> tuple[DeathsState, tuple[Finding, ...]]:
        """Given how processes ended, return a finding for each job with an abnormal end, as long as its ranks are
        shown."""
        abnormal, findings, passed = [], [], dict(state.passed)
        for job, ranks in seen.jobs():
            ended = [rank for rank in ranks_that_ended(ranks) if end_of(rank).at_ns > passed.get(job, 0)]
            if not ended:
                continue
            if job in state.abnormal or is_abnormal(ended[0], ranks):
                abnormal.append(job)
                findings.append(self._finding(job, ended[0], "was the first to end"))
            elif not has_outstayed(ended[0], ranks, seen.at_ns, self._ending_seconds):
                continue
            elif have_gone_on(ranks):
                passed[job] = end_of(ended[-1]).at_ns
            else:
                finding = self._finding(job, ended[0], "ended and others of its job are still here")
                findings.append(msgspec.structs.replace(finding, went_on=went_on(ranks, seen.at_ns)))
        here = {job for job, _ in seen.jobs()}
        return DeathsState(tuple(abnormal), tuple(one for one in passed.items() if one[0] in here)), tuple(findings)

    def _finding(self, job: JobKey, first: RankHistory, what: str) -> Finding:
        end = end_of(first)
        return Finding(
            detector=self.name,
            stage="confirmed",
            job=job,
            ranks=(first.sample.rank,),
            since_ns=end.at_ns,
            limit_seconds=0.0,
            reason=f"rank {first.sample.rank} {what}: {describe(end)}",
            resolvable=False,
            step=first.heartbeat.step if first.heartbeat else None,
        )


def has_outstayed(first: RankHistory, ranks: tuple[RankHistory, ...], at_ns: int, ending_seconds: float) -> bool:
    """Whether others of its job are still here when the time in which a job may end is over."""
    age_seconds = (at_ns - end_of(first).at_ns) / SECOND_NS
    return age_seconds >= ending_seconds and any(rank.alive for rank in ranks)


def have_gone_on(ranks: tuple[RankHistory, ...]) -> bool:
    """Whether some have ended, and all that are left went on for long after the last of these ends. Not known of one is
    no."""
    left_ns = _last_end_ns(ranks)
    alive = [rank for rank in ranks if rank.alive]
    return left_ns is not None and bool(alive) and all(_kept_on_ns(rank, left_ns) is not None for rank in alive)


def went_on(ranks: tuple[RankHistory, ...], at_ns: int) -> tuple[int, ...]:
    """Ranks without a hook that were at work for long after the last end, and stand now: what they stand in has begun
    without those that left. A hook's own record says so of those that have one."""
    left_ns = _last_end_ns(ranks)
    if left_ns is None:
        return ()
    alive = [(r.sample.rank, _kept_on_ns(r, left_ns)) for r in ranks if r.alive and r.outside is not None]
    return tuple(sorted(rank for rank, until_ns in alive if until_ns is not None and until_ns <= at_ns - STANDS_NS))


def _kept_on_ns(rank: RankHistory, left_ns: int) -> int | None:
    """When it was last seen to train, where that is long after others left; None: nothing tells that it was. Without a
    hook that is the pace at which it trained before: who waits polls or spins, and is woken and computes all the time,
    but not so."""
    if rank.outside is not None:
        # That window lies after what it had launched before.
        kept_ns = rank.outside.pace.kept_since(left_ns)
        return kept_ns if kept_ns is not None and kept_ns - WINDOW_NS > left_ns + RAN_AHEAD_NS else None
    moved_ns = rank.progress_since_ns if rank.heartbeat is not None else 0
    return moved_ns if moved_ns > left_ns + RAN_AHEAD_NS else None


def _last_end_ns(ranks: tuple[RankHistory, ...]) -> int | None:
    return max((end_of(rank).at_ns for rank in ranks if not rank.alive), default=None)


def end_of(rank: RankHistory) -> ProcessEnd:
    """How a rank that is gone has ended."""
    assert rank.sample.end is not None
    return rank.sample.end


def ranks_that_ended(ranks: tuple[RankHistory, ...]) -> list[RankHistory]:
    """Return a job's ended ranks, the earliest end first."""
    return sorted((r for r in ranks if not r.alive), key=lambda rank: (end_of(rank).at_ns, rank.sample.rank))


def is_abnormal(rank: RankHistory, ranks: tuple[RankHistory, ...]) -> bool:
    """A crash or a kill.

    An end of which nobody can tell anything is one only when a hook was there and did not get to say goodbye while most
    of the job lives on: a SIGTERM to all looks the same otherwise.
    """
    end = end_of(rank)
    if end.out_of_memory:
        return True
    if end.exit_signal is not None:
        return end.exit_signal not in ENDING
    if end.exit_code is not None:
        return _failed(end) or (end.exit_code == 0 and _left_others(ranks))
    vanished = rank.heartbeat is not None and not rank.heartbeat.ended
    return vanished and 2 * sum(other.alive for other in ranks) > len(ranks)


def _failed(end: ProcessEnd) -> bool:
    if end.exit_signal is not None:
        return end.exit_signal not in ENDING
    return bool(end.exit_code) and (end.exit_code or 0) - SHELL_SIGNAL not in ENDING


def _left_others(ranks: tuple[RankHistory, ...]) -> bool:
    """A few left in order and the next to end failed: those that were left need their peers. A job that is asked to
    end leaves as a whole, or by signals."""
    ends = [end_of(rank) for rank in ranks_that_ended(ranks)]
    place = next((place for place, end in enumerate(ends) if _failed(end)), 0)
    return 0 < 2 * place < len(ranks) and all(end.exit_code == 0 for end in ends[:place])


def failed_by_itself(ranks: tuple[RankHistory, ...]) -> bool:
    """The job's first end was a failure of its own: an exit code, or a signal that a process gives itself. Who ends a
    job from outside does it by other signals."""
    ended = ranks_that_ended(ranks)
    end = end_of(ended[0]) if ended else None
    if end is None or end.out_of_memory:
        return False
    if end.exit_signal is not None:
        return end.exit_signal in OWN_FAULTS
    return 0 < (end.exit_code or 0) < SHELL_SIGNAL


def is_ending(ranks: tuple[RankHistory, ...], passed_ns: int = 0) -> bool:
    """The job is on its way out: its first end was a normal one, and its last is not one that the others have gone on
    after (`DeathsState.passed`)."""
    ended = ranks_that_ended(ranks)
    return bool(ended) and end_of(ended[-1]).at_ns > passed_ns and not is_abnormal(ended[0], ranks)


def describe(end: ProcessEnd) -> str:
    """An end in words: by a signal, with a code, for memory."""
    if end.out_of_memory:
        return "killed for memory"
    if end.exit_signal is not None:
        return f"signal {end.exit_signal} ({signal_name(end.exit_signal) or 'a real-time one'})"
    return f"exit code {end.exit_code}" if end.exit_code is not None else "nobody could tell how"
