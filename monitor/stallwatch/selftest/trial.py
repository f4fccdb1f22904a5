"""One job from start to end: watch what its ranks tell, and when nothing moves find out why and end it."""

import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stallwatch.errors import StallwatchError
from stallwatch.selftest.advice import about_the_node
from stallwatch.selftest.launching import JobPlan, LaunchedRanks
from stallwatch.selftest.result import Device, Failure, OwnFailure, TrialResult
from stallwatch.selftest.told_so_far import ToldSoFar, failure_at_end
from stallwatch.selftest.why_stuck import Investigation, WhyStuck
from stallwatch.selftest.worker.step_lines import NO_TORCH, name_of

_POLL_SECONDS = 0.05
# What the others have to say of a fault comes within this; NCCL's ranks may just hang.
_AFTERMATH_SECONDS = 3.0
_MEANINGS = {
    "device": "opening the GPU and calculating on it",
    "store": "connecting to the store at MASTER_ADDR:MASTER_PORT",
    "meeting": "waiting at the store for all ranks",
    "init": "making the process group, its connections and the first all_reduce",
}

Tell = Callable[[str], None]


class Trial:
    """One job of the self-test, started, watched to its end or to a deadline, and taken away."""

    def __init__(self, plan: JobPlan, folder: Path, environment: Mapping[str, str], tell: Tell, *, look: bool) -> None:
        """`folder` must not exist; `look` at ranks that stand still with the daemon's own means."""
        self._plan = plan
        self._folder = folder
        self._environment = environment
        self._tell = tell
        self._look = look
        self._progress = ToldSoFar(plan.ranks)
        self._told: set[str] = set()

    def run(self) -> TrialResult:
        """Raise OwnFailure when the test itself does not work; whatever happens, no rank stays."""
        began = time.monotonic()
        reports, records = self._folder / "job", self._folder / "ranks"
        for folder in (reports, records):
            folder.mkdir(mode=0o700, parents=True)
        ranks = LaunchedRanks(self._plan, reports, self._environment, records)
        try:
            failure = self._watch(ranks)
        finally:
            ranks.stop()
        facts = self._progress.facts()
        first = next(iter(facts.values()), {})
        return TrialResult(
            backend=first.get("backend"),
            ranks=self._plan.ranks,
            seconds=round(time.monotonic() - began, 2),
            steps=self._progress.steps(),
            devices=self._devices(ranks),
            failure=failure,
            torch=first.get("torch"),
            nccl=first.get("nccl"),
            master=ranks.master,
        )

    def _devices(self, ranks: LaunchedRanks) -> tuple[Device, ...]:
        """Who is who, by what each rank told; of one that told nothing, what was started."""
        told = {device.rank: device for device in self._progress.devices()}
        given = dict(enumerate(self._plan.devices))
        return tuple(
            told.get(rank) or Device(rank, socket.gethostname(), process.pid, given.get(rank))
            for rank, process in enumerate(ranks.processes)
        )

    def _watch(self, ranks: LaunchedRanks) -> Failure | None:
        moved = time.monotonic()
        hurt: float | None = None
        while True:
            codes = ranks.exit_codes()  # before the lines: what a rank told before its end is read then
            if self._progress.add(ranks.read()):
                moved = time.monotonic()
                self._tell_step()
            self._check_ours(ranks, codes)
            now = time.monotonic()
            if len(codes) == self._plan.ranks:
                return failure_at_end(self._progress, codes) or self._unfinished(ranks)
            ended_early = any(code and not self._progress.finished(rank) for rank, code in codes.items())
            if hurt is None and (self._progress.errors() or ended_early):
                hurt = now
            if hurt is not None and now - hurt > _AFTERMATH_SECONDS:
                return failure_at_end(self._progress, codes) or self._stalled(ranks, now - moved)
            if hurt is None and now - moved > self._patience():
                return self._stalled(ranks, now - moved)
            time.sleep(_POLL_SECONDS)

    def _patience(self) -> float:
        return self._plan.start_seconds if self._progress.importing() else self._plan.step_seconds

    def _check_ours(self, ranks: LaunchedRanks, codes: Mapping[int, int]) -> None:
        if (crash := self._progress.crash()) is not None:
            words = ranks.last_words(crash.rank)
            if NO_TORCH in crash.detail:
                raise OwnFailure(crash.detail, "It is asked for with this shell's environment, as training would.")
            raise OwnFailure(f"rank {crash.rank} of the self-test crashed: {crash.detail}", words)
        for rank in self._progress.silent():
            if rank in codes:
                raise OwnFailure(
                    f"rank {rank} ended with exit code {codes[rank]} before it could test anything",
                    ranks.last_words(rank),
                )

    def _unfinished(self, ranks: LaunchedRanks) -> Failure | None:
        for rank in range(self._plan.ranks):
            if not self._progress.finished(rank):
                raise OwnFailure(f"rank {rank} ended without a report of its end", ranks.last_words(rank))
        return None

    def _stalled(self, ranks: LaunchedRanks, seconds: float) -> Failure:
        at = self._progress.farthest()
        step, size = at.key if at is not None else ("start", None)
        silent, behind, stuck = self._progress.silent(), self._progress.behind(), self._progress.stuck()
        where = name_of(step, size) + (f" ({_MEANINGS[step]})" if step in _MEANINGS else "")
        self._tell(f"nothing has moved for {seconds:.0f} s in step {where}" + (": looking at the ranks" * self._look))
        judgement = self._investigate(ranks) if self._look else WhyStuck(None)
        verdict = judgement.report.verdicts[0] if judgement.report and judgement.report.verdicts else None
        verdict = about_the_node(verdict) if verdict is not None else None
        if silent:
            summary = f"{_ranks(silent)} told nothing within {seconds:.0f} s of the start; the others wait in {where}"
        elif behind:
            stands = [self._progress.open_step(rank) for rank in behind]
            last = ", ".join(dict.fromkeys(name_of(*line.key) for line in stands if line is not None))
            summary = f"{where} did not end within {seconds:.0f} s: {_ranks(behind)} never began it" + (
                f" and stood in {last}" if last else ""
            )
        elif stuck:
            summary = f"{where} did not end within {seconds:.0f} s on {_ranks(stuck)}; the others have ended it"
        else:
            summary = f"{where}, which all ranks have begun, did not end within {seconds:.0f} s"
        culprits = silent or behind or stuck
        if verdict is not None and verdict.culprits and verdict.traits.stands:
            culprits = verdict.culprits
        if verdict is not None and verdict.traits.state not in ("well", "undecided"):
            summary += f". {verdict.summary}"
        return Failure(
            kind="absent" if silent else "stalled",
            step=step,
            bytes=size,
            culprits=culprits,
            summary=summary,
            verdict=verdict,
            missing=judgement.missing,
        )

    def _investigate(self, ranks: LaunchedRanks) -> WhyStuck:
        pids = {rank: process.pid for rank, process in enumerate(ranks.processes) if process.poll() is None}
        # Where --python is a wrapper, the rank is a child of what we started.
        pids |= {rank: int(f["pid"]) for rank, f in self._progress.facts().items() if rank in pids and f.get("pid")}
        try:
            return Investigation(self._folder / "bundle", self._folder / "ranks").judge(pids)
        except (StallwatchError, OSError) as error:  # the step did not end, whether we can say why or not
            return WhyStuck(None, (f"the ranks could not be looked at: {error}",))

    def _tell_step(self) -> None:
        at = self._progress.farthest()
        if at is not None and at.step not in self._told:
            self._told.add(at.step)
            self._tell(at.step)


def _ranks(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
