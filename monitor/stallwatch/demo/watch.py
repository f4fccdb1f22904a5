"""Watches one fault through the daemon's eyes until there is a verdict, a quiet end, or a deadline has passed."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from stallwatch.clock import Clock, SystemClock
from stallwatch.demo.catalogue import Fault, agrees, culprits
from stallwatch.demo.daemon_child import tail
from stallwatch.demo.job import Job
from stallwatch.demo.outcome import DemoOutcome, Said
from stallwatch.errors import DeadlineExceeded, StallwatchError
from stallwatch.model.verdict import Verdict
from stallwatch.outputs.client import DaemonUnreachable
from stallwatch.outputs.documents import IncidentDocument, IncidentList, RankList

START_SECONDS = 180.0  # importing torch on a busy machine, once a rank
VERDICT_SECONDS = 90.0
QUIET_SECONDS = 240.0
AFTERMATH_SECONDS = 5.0  # a quiet job has ended: what would the daemon still say?
POLL_SECONDS = 0.2
JOB_NAME = f"demo-{os.getpid()}"  # several demos may run on one machine

Tell = Callable[[str], None]


class Reader(Protocol):
    """What the demo asks of the daemon: outputs.client.Client."""

    def ranks(self) -> RankList:
        """Return the ranks that the daemon sees; raise DaemonUnreachable where it does not answer."""
        ...

    def incidents(self) -> IncidentList:
        """Return open and recent incidents; raise DaemonUnreachable where it does not answer."""
        ...

    def incident(self, incident_id: str) -> IncidentDocument:
        """Return one incident with its verdicts; raise UsageError for what cannot be an id, DaemonUnreachable where it
        does not answer."""
        ...

    def page_url(self) -> str | None:
        """Return the address of the status page, None where the daemon serves none."""
        ...


class WatchedDaemon(Protocol):
    """A running daemon: daemon_child.DaemonChild."""

    rank_directory: Path

    @property
    def client(self) -> Reader:
        """What asks this daemon."""
        ...

    def check(self) -> None:
        """Raise StallwatchError when it has ended."""
        ...


class Watch:
    """Raise StallwatchError when daemon or job do not start; a wrong verdict, or none, is an outcome."""

    def __init__(
        self,
        fault: Fault,
        ranks: int,
        seed: int,
        mark: Path,
        tell: Tell,
        clock: Clock | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.fault = fault
        self.ranks = ranks
        self.seed = seed
        self._tell = tell
        self._mark = mark
        self._clock = clock or SystemClock()
        self._poll_seconds = poll_seconds
        self._events_told: dict[str, int] = {}
        self._stage = 0
        self._said: list[Said] = []

    def run(self, daemon: WatchedDaemon, job: Job) -> DemoOutcome:
        """Watch until there is a verdict, a quiet end, or a deadline has passed."""
        struck = self._until_struck(daemon, job)
        if self.fault.is_quiet:
            return self._outcome(daemon, self._until_quiet_end(daemon, job))
        self._tell(f"the fault strikes; the daemon is not told: {self.fault.sentence}")
        return self._outcome(daemon, self._until_verdict(daemon, struck))

    def _until_struck(self, daemon: WatchedDaemon, job: Job) -> float:
        """Return the fault's moment on the monotonic clock, for a quiet job that of its first step."""
        for _ in self._polls(START_SECONDS):
            daemon.check()
            stepping = self._show_ranks(daemon)
            if (struck := self._struck()) is not None:
                return struck
            if self.fault.is_quiet and stepping:
                return self._now()
            if job.exit_code() is not None:
                raise StallwatchError("the job ended before its fault", tail(job.log))
        raise DeadlineExceeded(f"the job did not get going within {START_SECONDS:.0f} s", tail(job.log))

    def _until_verdict(self, daemon: WatchedDaemon, struck: float) -> IncidentDocument | None:
        for _ in self._polls(VERDICT_SECONDS):
            for incident in self._incidents(daemon):
                if incident.state == "resolved" and incident.severity == "none":
                    continue  # a slow start of a busy machine, over before anybody was told
                verdict = self._note(incident, self._struck() or struck)
                if verdict is not None:
                    return daemon.client.incident(incident.incident_id)
        return None

    def _until_quiet_end(self, daemon: WatchedDaemon, job: Job) -> IncidentDocument | None:
        """Return the first incident about which somebody was told."""
        ended: float | None = None
        for _ in self._polls(QUIET_SECONDS):
            for incident in self._incidents(daemon):
                if incident.severity != "none":
                    self._note(incident, self._now())
                    return daemon.client.incident(incident.incident_id)
            if ended is None and job.exit_code() is not None:
                self._tell(f"the job has ended, exit code {job.exit_code()}")
                ended = self._now()
            if ended is not None and self._now() - ended > AFTERMATH_SECONDS:
                if job.exit_code():
                    raise StallwatchError("the job failed, though nothing was done to it", tail(job.log))
                return None
        raise DeadlineExceeded(f"the job did not end within {QUIET_SECONDS:.0f} s", tail(job.log))

    def _outcome(self, daemon: WatchedDaemon, incident: IncidentDocument | None) -> DemoOutcome:
        verdict = incident.verdicts[0] if incident and incident.verdicts else None
        right = agrees(self.fault, self.seed, self.ranks, verdict) if verdict or not incident else False
        return DemoOutcome(
            fault=self.fault.name,
            seed=self.seed,
            ranks=self.ranks,
            agrees=right,
            expected_causes=self.fault.causes,
            expected_culprits=culprits(self.fault, self.seed, self.ranks),
            seconds_to_verdict=self._said[-1].seconds if incident and self._said else None,
            said=tuple(self._said),
            incident=incident,
            page_url=daemon.client.page_url(),
        )

    def _note(self, incident: IncidentDocument, struck: float) -> Verdict | None:
        """Remember what was said; return the verdict once it is one."""
        if not incident.verdicts:
            return None
        verdict = incident.verdicts[0]
        said = Said(round(self._now() - struck, 2), verdict.cause, verdict.culprits)
        if not self._said or (self._said[-1].cause, self._said[-1].culprits) != (said.cause, said.culprits):
            self._said.append(said)
        return None if verdict.traits.state in ("undecided", "waits", "well") else verdict

    def _incidents(self, daemon: WatchedDaemon) -> tuple[IncidentDocument, ...]:
        daemon.check()
        try:
            incidents = daemon.client.incidents().incidents
        except DaemonUnreachable:  # busy: asked again at the next poll, until the deadline
            return ()
        # Without a hook, too, ranks are found: other jobs of this machine are not ours to judge.
        mine = tuple(incident for incident in incidents if incident.training_job == JOB_NAME)
        for incident in mine:
            told = self._events_told.get(incident.incident_id, 0)
            for event in incident.events[told:]:
                self._tell(f"daemon: {event.what}")
            self._events_told[incident.incident_id] = len(incident.events)
        return mine

    def _show_ranks(self, daemon: WatchedDaemon) -> bool:
        """Tell once that ranks are seen, and once that they step; return whether they do."""
        try:
            ranks = [rank for rank in daemon.client.ranks().ranks if rank.training_job == JOB_NAME]
        except DaemonUnreachable:
            return False
        if self._stage == 0 and len(ranks) >= self.ranks:
            self._stage = 1
            self._tell(f"daemon: sees {len(ranks)} ranks, pids {', '.join(str(rank.pid) for rank in ranks)}")
        steps = [rank.step for rank in ranks if rank.step]
        if self._stage == 1 and len(steps) >= self.ranks:
            self._stage = 2
            self._tell(f"daemon: all ranks step, now at step {min(steps)}")
        return self._stage == 2

    def _struck(self) -> float | None:
        try:
            return int(self._mark.read_text(encoding="ascii").split()[-1]) / 1e9
        except (OSError, IndexError, ValueError):
            return None

    def _now(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _polls(self, seconds: float) -> Iterator[None]:
        until = self._now() + seconds
        while self._now() < until:
            yield None
            time.sleep(self._poll_seconds)
