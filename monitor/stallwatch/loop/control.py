"""What people ask of the daemon, from other threads: answered from the last report, or queued for the loop."""

import queue
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import msgspec

from stallwatch.clock import Clock
from stallwatch.errors import DeadlineExceeded, UsageError
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import (
    Acknowledged,
    CaptureWanted,
    Event,
    MaintenanceWanted,
    ModeWanted,
    MuteWanted,
    VerdictJudged,
)
from stallwatch.loop.protocols import Store
from stallwatch.model.incident import Incident, Judgement, Mode, NodeReport
from stallwatch.model.snapshot import JobKey

_ANSWER_SECONDS = 5.0
_MOST_NAMES = 8


class Command(msgspec.Struct, frozen=True):
    """An event for the engine, and where to put the id of the incident it led to."""

    event: Event
    answer: Future[str] | None = None

    def answer_from(self, lives: IncidentTable) -> None:
        """Give the one who waits the incident that his capture became part of."""
        if self.answer is None or not isinstance(self.event, CaptureWanted):
            return
        ours = [
            life for life in lives.active if life.incident.job == self.event.job and life.family in ("hang", "request")
        ]
        if ours:
            self.answer.set_result(ours[-1].incident.incident_id)


class ControlService:
    """Satisfies outputs.output.Control. `wake` makes the loop look at the queue."""

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        self._wishes: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._report: NodeReport | None = None
        self.test_outputs: Callable[[], tuple[str, ...]] = lambda: ()

    def show(self, report: NodeReport) -> None:
        """Make `report` the latest. One assignment: readers see the old or the new."""
        self._report = report

    def wishes(self) -> list[Command]:
        """Return what was asked since the last call, oldest first. The loop's alone."""
        wishes = []
        while not self._wishes.empty():
            wishes.append(self._wishes.get_nowait())
        return wishes

    def incident(self, incident_id: str) -> Incident | None:
        """The incident of that id, open or past; None."""
        report = self._report
        known = report.incidents if report else ()
        return next((i for i in known if i.incident_id == incident_id), None) or self._store.load(incident_id)

    def past_incidents(self, limit: int) -> tuple[Incident, ...]:
        """Past incidents, newest first."""
        return self._store.newest(limit)

    def capture(self, training_job: str | None, owner: str | None = None) -> str:
        """Given a job, None where there is one alone, look at it now; return the id of its incident. Raise UsageError
        where it is not here, DeadlineExceeded where the loop does not answer."""
        job = self._job(training_job, owner)
        answer: Future[str] = Future()
        self._wishes.put(Command(CaptureWanted(job), answer))
        self._wake()
        try:
            return answer.result(_ANSWER_SECONDS)
        except FutureTimeout as error:
            raise DeadlineExceeded(
                f"the daemon's loop did not answer within {_ANSWER_SECONDS:.0f} s", "Its log may say why."
            ) from error

    def mute(self, training_job: str, seconds: float, owner: str | None = None, by: str = "") -> str:
        """Keep a job quiet for so long; return whose job that was."""
        whose = self._owner(training_job, by) if owner is None else owner
        until_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        self._wishes.put(Command(MuteWanted(training_job, until_ns, whose, by)))
        self._wake()
        return whose

    def mode(self, mode: Mode, seconds: float, by: str) -> str:
        """Set the mode for so long."""
        self._wishes.put(Command(ModeWanted(mode, self._clock.monotonic_ns() + int(seconds * 1e9), by)))
        self._wake()
        return self._reach()

    def maintenance(self, node: str, seconds: float, by: str, why: str) -> str:
        """Say that a node is worked on for so long."""
        name = node or self._node()
        self._wishes.put(Command(MaintenanceWanted(name, self._clock.monotonic_ns() + int(seconds * 1e9), by, why)))
        self._wake()
        return f"{self._reach()}{self._unknown(name) if seconds else ''}"

    def _unknown(self, node: str) -> str:
        """That no node of this name is there, which may be a slip, or because it is down."""
        report = self._report
        if report is None or not report.nodes or node in (report.snapshot.node, *report.nodes):
            return ""
        names = sorted((report.snapshot.node, *report.nodes))
        more = f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES)
        return f"; but no {node} is at the meeting place now (there are {', '.join(names[:_MOST_NAMES])}{more})"

    def acknowledge(self, incident_id: str, by: str) -> None:
        """Note that somebody is on an incident."""
        report = self._report
        known = {one.incident_id for one in report.incidents if not one.is_over} if report else set()
        if incident_id not in known:
            raise UsageError(
                f"no open incident {incident_id!r} on this node", f"Open: {', '.join(sorted(known)) or 'none'}."
            )
        self._wishes.put(Command(Acknowledged(incident_id, by)))
        self._wake()

    def judge(self, incident_id: str, judgement: Judgement, by: str) -> None:
        """Note what a person says of a verdict. Raise UsageError where the incident is not known or has none."""
        incident = self.incident(incident_id)
        if incident is None or incident.verdict is None:
            what = "has no verdict" if incident is not None else "is not known on this node"
            raise UsageError(f"incident {incident_id[:200]!r} {what}", "`stallwatch incidents` lists them.")
        self._wishes.put(Command(VerdictJudged(incident_id, judgement, by, incident)))
        self._wake()

    def notify_test(self) -> tuple[str, ...]:
        """Send a test alert by every output; return what came of each."""
        return self.test_outputs()

    def _node(self) -> str:
        if self._report is None:
            raise UsageError("the daemon has not looked at the node yet", "Ask again in a second, or name the node.")
        return self._report.snapshot.node

    def _reach(self) -> str:
        """Which nodes hear of what is said here."""
        sensors = self._report.snapshot.sensors if self._report is not None else ()
        place = next((one for one in sensors if one.sensor == "meeting_place"), None)
        if place is None:
            return "on this node alone, which meets no others (fleet.url)"
        if not place.up:
            return f"on this node, and on the others once this is mended: {place.reason}"
        return "on this node, and within 10 s on all that it meets"

    def _owner(self, training_job: str, otherwise: str) -> str:
        """Who has a job of this name here."""
        report = self._report
        known = {*(rank.job for rank in report.ranks), *(one.job for one in report.incidents)} if report else ()
        jobs = [job for job in known if job.training_job == training_job]
        if not (jobs or otherwise):
            raise UsageError(f"no job {training_job!r} is known here", "Say whose it will be (owner).")
        return _one_owner(training_job, jobs) if jobs else otherwise

    def _job(self, training_job: str | None, owner: str | None) -> JobKey:
        report = self._report
        if report is None:
            raise UsageError("the daemon has not looked at the node yet", "Ask again in a second.")
        alive = sorted({rank.job for rank in report.ranks if rank.state != "gone" and owner in (None, rank.owner)})
        names = sorted({job.training_job for job in alive})
        jobs = [job for job in alive if training_job in (None, job.training_job)]
        if not names:
            whose = f" of {owner}" if owner else ""
            raise UsageError(
                f"no training job{whose} runs on this node", "`stallwatch status` shows what the daemon sees."
            )
        if not jobs:
            whose = f" of {owner}" if owner else ""
            raise UsageError(f"no job {training_job!r}{whose} runs on this node", f"Running here: {', '.join(names)}.")
        if len({job.training_job for job in jobs}) > 1:
            raise UsageError("several jobs run on this node", f"Say which with --job: {', '.join(names)}.")
        _one_owner(jobs[-1].training_job, jobs)
        return jobs[-1]


def _one_owner(training_job: str, jobs: Iterable[JobKey]) -> str:
    """Return the owner of jobs of one name. Raise UsageError where several users have one."""
    owners = sorted({job.owner for job in jobs})
    if len(owners) > 1:
        raise UsageError(
            f"{len(owners)} users have a job {training_job!r} here", f"Say whose with --owner: {', '.join(owners)}."
        )
    return owners[0]
