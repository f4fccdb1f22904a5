"""Hands incidents that other nodes see too to the meeting place, and what comes of it to the engine. No call waits."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from stallwatch import __version__
from stallwatch.clock import SECOND_NS, Clock, since_boot_ns
from stallwatch.config import Config, node_of
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.detectors.node_pace import NodePace
from stallwatch.detectors.slow import searched_share
from stallwatch.diagnosis.node_summary import NodeSummary
from stallwatch.fleet.company_seat import Companies
from stallwatch.fleet.link import Link
from stallwatch.fleet.node_word import NodeWord, encode_word
from stallwatch.fleet.orders import Book, News
from stallwatch.fleet.pace_seat import JobPace
from stallwatch.fleet.pace_verdict import PaceVerdict, encode_pace
from stallwatch.fleet.place_settings import exposed, settings_of
from stallwatch.fleet.position import Local, Position
from stallwatch.fleet.roster import MEND, RENAME, RosterSeat, apart_of, doubled_in, named
from stallwatch.formats.tolerant import NOT_JSON
from stallwatch.incidents.incident_names import ordinal_of, shared_name
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Event, FleetSaid, Judged
from stallwatch.loop import fleet_orders
from stallwatch.loop.own_part import START_IT, accuses_own, alone, is_proven, with_own_lines
from stallwatch.model.finding import Finding
from stallwatch.model.incident import Gathering, Incident, StandsAt, Together, Told, is_last
from stallwatch.model.snapshot import JobKey, SensorStatus
from stallwatch.model.verdict import Report

log = logging.getLogger("stallwatch.fleet")

_PACED_NS = 5_000_000_000  # between reckonings of what this node says of its jobs' pace
_LINGER_NS = 90_000_000_000  # after its end an incident may still be this node's to tell
Stands = Callable[[Sequence[Incident]], tuple[StandsAt, ...] | None]
_SUMMARY = msgspec.msgpack.Decoder(NodeSummary)


class Meets(Protocol):
    """What the loop asks of the meeting place of a job's nodes: fleet.link.Link."""

    @property
    def problem(self) -> str:
        """Why it cannot be reached, in words for people; "" while it can."""

    @property
    def busy(self) -> bool:
        """True while a call is under way that may bring news."""

    @property
    def book(self) -> Book:
        """What all nodes have said at the meeting place."""

    @property
    def companies(self) -> Companies:
        """Who stands where incidents of other nodes do."""

    @property
    def roster(self) -> RosterSeat:
        """Which nodes are there, and with which key each signs."""

    def step(self, now_ns: int, locals_: Sequence[Local], paces: Sequence[JobPace] = ()) -> Mapping[str, Position]:
        """Given the incidents of this node, ask what others say of them; return where this node stands, by incident."""

    def slow(self, now_ns: int) -> Mapping[str, PaceVerdict]:
        """Who holds which job back, over all nodes."""

    def news(self) -> Sequence[News]:
        """What others have said since the last call."""

    def close(self) -> None:
        """Leave; what this node said goes."""


class _Word(msgspec.Struct):
    """What this node has judged of one incident so far."""

    judged: int = 0
    report: Report | None = None
    summary: bytes = b""
    ranks: tuple[int, ...] = ()
    world_size: int = 0
    began_ns: int = 0
    begun: bool = False
    was_over: bool = False  # before this daemon knew of it
    over_ns: int | None = None
    said: FleetSaid | None = None
    known_as: str = ""  # the incident, by people whom this node told of it


class Fleet:
    """This daemon's part in what nodes decide together."""

    def __init__(
        self,
        link: Meets,
        clock: Clock,
        node: str,
        told: Callable[[str], Told],
        stands: Stands | None = None,
        url: str = "",
        since_boot_ns: Callable[[], int] = since_boot_ns,
    ) -> None:
        """`told`: given an incident's id, what this node's outputs have delivered of it; `stands`: given incidents,
        what they say to other nodes of those that stand where others may; `url`: of the place, for people."""
        self._link = link
        self._clock = clock
        self._node = node
        self._told = told
        self._stands = stands
        self._url = url
        self._since_boot_ns = since_boot_ns
        self._words: dict[str, _Word] = {}
        self._paces: tuple[JobPace, ...] = ()
        self._paced_ns = 0

    @property
    def busy(self) -> bool:
        """True while a call is under way: look again soon."""
        return self._link.busy

    def step(self, lives: IncidentTable, events: Sequence[Event], jobs: Sequence[JobFacts], at_ns: int) -> list[Event]:
        """Given the incidents, and what was just judged or asked for by people, return what the other nodes say."""
        book, wall_ns = self._link.book, self._clock.wall_ns()
        self._link.roster.jobs = tuple(
            (shared_name(one.job), min(one.ranks)) for one in jobs if one.alive and one.world_size > len(one.ranks)
        )
        if self._stands is not None:
            self._link.companies.step(at_ns, self._stands(lives.incidents()) or ())
        fleet_orders.give(book, events, at_ns, wall_ns)
        fleet_orders.give_jobs_here(book, self._node, [one.job for one in jobs], at_ns)
        said = self._of_incidents(lives, events, jobs, at_ns)
        boot_ns = self._since_boot_ns()
        lasting = {known: (boot_ns - one.began_ns) / SECOND_NS for known, one in self._words.items() if one.began_ns}
        said += fleet_orders.give_acknowledged(book, lives.incidents(), lasting, at_ns, wall_ns)
        return [*said, *fleet_orders.events_of(self._link.news())]

    def _of_incidents(
        self, lives: IncidentTable, events: Sequence[Event], jobs: Sequence[JobFacts], at_ns: int
    ) -> list[Event]:
        shared = [one for one in lives.incidents() if one.together is not None]
        facts = {one.job: one for one in jobs}
        reports = {event.incident_id: event for event in events if isinstance(event, Judged)}
        locals_ = [
            local
            for one in shared
            if (local := self._local(one, facts, reports.get(one.incident_id), _past(lives, one), at_ns)) is not None
        ]
        present = {one.incident_id for one in shared}
        self._words = {known: word for known, word in self._words.items() if known in present}
        if not locals_ and not self._link.busy:
            self._link.step(at_ns, (), self._paces)
            return []
        positions = self._link.step(at_ns, locals_, self._paces)
        return [said for local in locals_ if (said := self._said(local, positions[local.incident_id])) is not None]

    def moves(
        self,
        paces: Callable[[], Mapping[JobKey, NodePace]],
        jobs: Sequence[JobFacts],
        findings: Sequence[Finding],
        at_ns: int,
    ) -> list[Finding]:
        """Given what this node says of the pace of its jobs, and what it found by itself, return what all nodes found
        of its ranks."""
        facts = {one.job: one for one in jobs if one.world_size > len(one.ranks)}
        if at_ns - self._paced_ns >= _PACED_NS:
            self._paced_ns = at_ns
            self._paces = tuple(
                JobPace(shared_name(job), encode_pace(pace), facts[job].world_size, facts[job].began_ns)
                for job, pace in paces().items()
                if job in facts
            )
        known = {one.job for one in findings if one.family == "slow"}
        slow = self._link.slow(at_ns)
        return [
            _slow_here(job, here, slow[shared_name(job)], at_ns)
            for job, one in facts.items()
            if job not in known
            and shared_name(job) in slow
            and (here := tuple(rank for rank in slow[shared_name(job)].ranks if rank in one.ranks))
        ]

    def meetings(self, at_ns: int) -> tuple[Gathering, ...] | None:
        """Who stands where incidents of other nodes do; None where no output asks."""
        asked = self._stands is not None and self._stands(()) is not None
        return self._link.companies.meetings(at_ns) if asked else None

    def status(self) -> SensorStatus:
        """The meeting place as people see it, among the sensors: what is wrong with it, else how well it is."""
        problem, seen = self._link.problem, self._link.roster.seen
        well = seen.well(self._url) if seen is not None else ""
        return SensorStatus("meeting_place", not problem, problem or well, 0.0, 0, required=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All other nodes at the meeting place; () where they are not known, or too many."""
        seen = self._link.roster.seen
        return () if seen is None else seen.known

    @property
    def strangers(self) -> int | None:
        """How many nodes sign with another key; None: not known."""
        seen = self._link.roster.seen
        return None if seen is None else len(seen.strangers)

    def close(self) -> None:
        """End the link to the meeting place."""
        self._link.close()

    def _local(
        self, incident: Incident, facts: Mapping[JobKey, JobFacts], judged: Judged | None, past: int, at_ns: int
    ) -> Local | None:
        word = self._words.setdefault(incident.incident_id, _Word(was_over=incident.is_over))
        here = facts.get(incident.job)
        if here is not None:
            word.ranks, word.world_size = here.ranks, here.world_size
            if not incident.is_over:  # of the job that stood, and not of one that follows it
                word.began_ns, word.begun = here.began_ns, word.begun or here.begun
        if judged is not None:
            word.judged, word.report = word.judged + 1, judged.report or word.report
            word.summary = self._word_of(word, judged) or word.summary
            word.said = None  # what this node has judged by itself now stands in the place of what was said
        if incident.is_over and word.over_ns is None:
            word.over_ns = at_ns
        if word.over_ns is not None and at_ns - word.over_ns > _LINGER_NS:
            return None
        told = self._told(incident.incident_id)
        # What the daemon before this one judged is known; that people were told of it the others must hear.
        if incident.is_over and word.judged == 0 and not told.outputs:
            return None
        # Of a job that was started anew the next incident is another's: all that is left of this one is its end.
        if word.was_over and is_last(told):
            return None
        adopted = word.judged == 0 and incident.report is not None
        if incident.severity != "none" and incident.together is not None and incident.together.speaks:
            word.known_as = word.known_as or incident.shared_id
        if told.outputs:
            seconds = (at_ns - (incident.verdict_since_ns or at_ns)) / SECOND_NS
            known_as = word.known_as or incident.shared_id
            told = replace(told, incident_id=known_as, waits_on=incident.waits_on, seconds=seconds)
        return Local(
            incident_id=incident.incident_id,
            job=shared_name(incident.job),
            world_size=word.world_size,
            ranks=word.ranks,
            judged=1 if adopted else word.judged,
            report=word.report or incident.report,
            summary=word.summary,
            proven=is_proven(word.report, word.ranks),
            past=past,
            ordinal=_ordinal(incident) if word.was_over else 0,
            began_ns=word.began_ns,
            begun=word.begun,
            suspects=accuses_own(word.report, word.ranks),
            told=told,
            over=incident.is_over,
            conclusive=is_proven(word.report, word.ranks, at_once=True),
            ended=incident.state == "ended",
            alone=doubled_in(shared_name(incident.job), self._node, self._link.roster.seen),
            apart=apart_of(shared_name(incident.job), word.ranks, self._link.roster.seen),
        )

    def _word_of(self, word: _Word, judged: Judged) -> bytes:
        try:
            summary = _SUMMARY.decode(judged.summary)
        except NOT_JSON:  # none was made, or it is cut off: the verdict of this node stands all the same
            return b""
        report = judged.report
        complete = report is not None and report.evidence_complete
        captured_at = (report.captured_at or "") if report is not None else ""
        ranks = tuple(sorted({*word.ranks, *(digest.summary.rank for digest in summary.ranks)}))
        return encode_word(NodeWord(self._node, ranks, summary, complete, captured_at, __version__))

    def _said(self, local: Local, position: Position) -> FleetSaid | None:
        word = self._words[local.incident_id]
        report, nodes = position.report, position.nodes if position.report is not None else 0
        if report is None and position.away and local.report is not None:
            report = alone(local.report, position.away, mend=RENAME if local.alone else START_IT)
        elif position.apart is not None and (seen := report or local.report) is not None:
            report = alone(seen, position.apart.why, named(position.apart.nodes), MEND)
        if report is not None and local.report is not None:
            report = with_own_lines(report, local.report)
        shared_id = f"{local.job}-{position.ordinal}" if position.ordinal else ""
        if position.speaks and not shared_id:
            shared_id = f"{local.job}-{position.expected}"  # as others will call it, or do
        known_as = (position.told.incident_id if position.told is not None else "") or word.known_as
        together = Together(position.speaks, position.why, known_as or shared_id, nodes, position.silent, position.told)
        said = FleetSaid(local.incident_id, together, report)
        before = word.said
        if before is not None and (before.together, _gist(before.report)) == (together, _gist(report)):
            return None
        word.said = said
        return said


def _slow_here(job: JobKey, here: tuple[int, ...], verdict: PaceVerdict, at_ns: int) -> Finding:
    return Finding(
        detector="slow",
        stage=verdict.stage,
        job=job,
        ranks=here,
        since_ns=at_ns - int(verdict.seconds * 1e9),
        limit_seconds=0.0,
        reason=verdict.reason,
        without_cost=verdict.without_cost,
        slowness=verdict.slowness,
        from_start=verdict.from_start,
    )


def _ordinal(incident: Incident) -> int:
    return ordinal_of(incident.together.incident_id) if incident.together is not None else 0


def _past(lives: IncidentTable, incident: Incident) -> int:
    """The ordinal of the last incident of this job that was over before this one began."""
    shared = (one for one in lives.incidents() if one.job == incident.job and one.is_over and one is not incident)
    return max((ordinal_of(one.together.incident_id) for one in shared if one.together is not None), default=0)


def _gist(report: Report | None) -> tuple[object, ...] | None:
    """What of a report is news: how long something has not answered is none."""
    return None if report is None else tuple(replace(verdict, missing=()) for verdict in report.verdicts)


def fleet_of(config: Config, clock: Clock, told: Callable[[str], Told], stands: Stands | None = None) -> Fleet | None:
    """Return how this node meets others; None where it judges alone. Raise UsageError for what cannot be."""
    settings = settings_of(config.fleet)
    if settings is None:
        return None
    if said := exposed(settings):
        log.warning("%s", said)
    node = node_of(config)
    share = searched_share(config.slow) if config.slow.enabled else 0.0
    return Fleet(Link(settings, node, slow_share=share), clock, node, told, stands, config.fleet.url)
