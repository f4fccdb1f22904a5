"""An engine with its clock in the test's hand: say what the node shows, read what the engine wants."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.incidents.engine import Engine, Now
from stallwatch.incidents.life import IncidentLife, IncidentTable
from stallwatch.incidents.messages import Action, Captured, Event, Judged
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Report, Slowness, Verdict

SECOND = 1_000_000_000
START = 1_000 * SECOND
JOB = JobKey("train", "127.0.0.1:29500/4/0")
A = TypeVar("A", bound=Action)


def stall(stage: str = "suspect", since: float = 0, job: JobKey = JOB) -> Finding:
    return finding("stall", stage, since=since, job=job)


def finding(
    detector: str, stage: str = "confirmed", *, resolvable: bool = True, since: float = 0, job: JobKey = JOB
) -> Finding:
    return msgspec.convert(
        {
            "detector": detector,
            "stage": stage,
            "job": msgspec.to_builtins(job),
            "ranks": [0, 1, 2, 3],
            "since_ns": START + int(since * SECOND),
            "limit_seconds": 5.0,
            "reason": f"{detector} was seen",
            "resolvable": resolvable,
        },
        Finding,
    )


def facts(job: JobKey = JOB, **fields: Any) -> JobFacts:
    values: dict[str, Any] = {
        "job": job,
        "world_size": 4,
        "ranks": (0, 1, 2, 3),
        "alive": (0, 1, 2, 3),
        "moved": False,
        "begun": True,
        "ending": False,
        "opted_out": False,
    }
    return JobFacts(**(values | fields))


def report(
    cause: str,
    culprits: tuple[int, ...] = (3,),
    confidence: str = "likely",
    where: str | None = None,
    *,
    deadline: float | None = None,
    waiting: str = "0-2",
    ends_by_itself: str | None = None,
) -> Report:
    """`deadline`: the second at which torch's own time-out ends the job."""
    body = {
        "cause": cause,
        "culprits": culprits,
        "confidence": confidence,
        "summary": f"it is {cause}",
        "where": where,
        "waiting": waiting,
        "ends_by_itself": ends_by_itself,
    }
    ends_at = None if deadline is None else datetime.fromtimestamp(Story.wall_ns(deadline) / SECOND, UTC).isoformat()
    return Report(1, "0", None, None, None, None, ends_at, True, (msgspec.convert(body, Verdict),))


def slow_report(culprits: tuple[int, ...], cost_seconds: float, seconds: float) -> Report:
    """What a look says that saw these ranks come late in each step of 0.26 s, over this time."""
    cost = Slowness(cost_seconds, cost_seconds, cost_seconds, 0.26, int(seconds / 0.26), seconds)
    answer = report("slow_rank", culprits)
    return msgspec.structs.replace(answer, verdicts=(msgspec.structs.replace(answer.verdicts[0], slowness=cost),))


class Story:
    """Advances an engine second by second; looks and judgements answer when the test says so."""

    def __init__(self, config: Config | None = None, lives: IncidentTable | None = None) -> None:
        self.engine = Engine(config or Config())
        self.lives = lives or IncidentTable()
        self.second = 0.0
        self.actions: list[Action] = []
        self.findings: tuple[Finding, ...] = ()
        self.jobs: tuple[JobFacts, ...] = (facts(),)

    def at(
        self,
        second: float,
        *findings: Finding,
        jobs: Sequence[JobFacts] | None = None,
        events: Sequence[Event] = (),
    ) -> list[Action]:
        """A tick at this second: return what the engine wants."""
        self.second, self.findings = second, findings
        if jobs is not None:
            self.jobs = tuple(jobs)
        return self._advance(events)

    def hear(self, *events: Event, later: float = 0.1) -> list[Action]:
        """News between ticks: the last findings still hold."""
        self.second += later
        return self._advance(events)

    def looked(self, complete: bool = True, done: bool = True) -> list[Action]:
        """The look under way comes back."""
        return self.hear(Captured(self.incident.incident_id, self.life.looks, complete, done))

    def judged(self, answer: Report | None, problem: str = "") -> list[Action]:
        return self.hear(Judged(self.incident.incident_id, self.life.looks, answer, problem))

    def hang(self, cause: str, **how: Any) -> None:
        """A stall from second 6 to its first verdict, at about second 10."""
        self.at(6, stall())
        self.looked()
        self.at(9, stall("confirmed"))
        self.looked()
        self.judged(report(cause, **how))

    def stands(self, until: float) -> None:
        """The stall lasts, tick by tick; later looks say the same as the last verdict."""
        standing = self.findings
        while self.second < until:
            self.at(min(float(int(self.second) + 1), until), *standing)
            if self.lives.active and self.life.capturing:
                self.looked()
            if self.lives.active and self.life.judging:
                self.judged(self.incident.report)

    @property
    def severity(self) -> str:
        return self.incident.severity

    @property
    def life(self) -> IncidentLife:
        (life,) = self.lives.active
        return life

    @property
    def incident(self) -> Incident:
        return self.life.incident

    @staticmethod
    def wall_ns(second: float) -> int:
        return 1_700_000_000 * SECOND + START + int(second * SECOND)

    def _advance(self, events: Sequence[Event]) -> list[Action]:
        at_ns = START + int(self.second * SECOND)
        now = Now(at_ns, self.wall_ns(self.second), "node0", self.findings, self.jobs)
        self.lives, actions = self.engine.advance(self.lives, events, now)
        self.actions += actions
        return list(actions)


def of(actions: Sequence[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]
