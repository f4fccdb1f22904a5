"""When to look again, and when what was seen is enough to judge."""

from collections.abc import Sequence

from msgspec.structs import replace

from stallwatch.clock import SECOND_NS
from stallwatch.config import Config
from stallwatch.detectors.job_facts import JobFacts
from stallwatch.formats.rank_ranges import ranks_in
from stallwatch.incidents import slowness
from stallwatch.incidents.life import ENDS_TOGETHER_NS, Family, IncidentLife, begins_soon, died
from stallwatch.incidents.messages import Action, CancelCapture, Captured, Judge, Judged, Note, Save, StartCapture
from stallwatch.incidents.recurrence import recurrence
from stallwatch.model.incident import Incident, IncidentEvent, IncidentState
from stallwatch.model.verdict import Fact, Report, Verdict

_FIRST_REPEAT_SECONDS = 15.0
# Looks at who begins to wait: so long after the last look, and after each such look a second more, up to a time within
# which two looks still come before the shortest patience with what ranks wait for (a minute) is over.
_NEW_WAIT_SECONDS = 10.0
_LAST_NEW_WAIT_SECONDS = 30.0
_LOOKS_AT_WAITS = 2  # what changed since the last look is seen to stand by another one
_LAST_REPEAT_SECONDS = 300.0
# A look at a job that was still starting shows motion that has ended since: ranks make CUDA contexts for seconds.
_SETTLED_SECONDS = 3.0
# A stop needs no stack and no recorder to be known: it is judged once before its first look is ready.
_EARLY_SECONDS = 0.4
# The third look of what stays undecided comes half a minute into it; a wait that passes has mostly passed by then.
_STANDS_SECONDS = 20.0
_BEFORE_SECONDS = 15.0  # a look this long before somebody is told or paged: nobody is woken by old evidence
# On a crowded node a look and its judgement take longer (34 s at a load of 30 on two cores): as long before as the last
# ones took, for who is told before they are over is told what they refute.
_MOST_BEFORE_SECONDS = 60.0


def captured(life: IncidentLife, event: Captured, wall_ns: int, actions: list[Action]) -> IncidentLife:
    """Take in how far the look under way has come."""
    if event.look != life.looks:
        return life  # of a look that was given up
    incident = life.incident
    if event.done:
        what = f"look {event.look} done"
        what += f"; missing: {'; '.join(event.missing)}" if event.missing else ""
        what += f"; {event.problem}" if event.problem else ""
        incident = noted(incident, what, wall_ns, actions)
    elif event.complete and not life.ready:
        incident = noted(incident, f"look {event.look}: evidence complete", wall_ns, actions)
    undecided = incident.verdict is None or incident.verdict.cause == "undecided"
    judged_look = life.judged_look
    if event.done and undecided and judged_look == event.look:
        judged_look -= 1  # judged early, and more has come since
    # What a slow rank does over some seconds comes last: who is told is told the line, too.
    enough = event.done if slowness.profile_seconds(incident, event.look) else event.complete or event.done
    return replace(
        life,
        incident=incident,
        ready=life.ready or enough,
        capturing=not event.done,
        judged_look=judged_look,
    )


def judged(
    life: IncidentLife,
    event: Judged,
    config: Config,
    now_ns: int,
    wall_ns: int,
    actions: list[Action],
    earlier: Sequence[Incident] = (),
    facts: JobFacts | None = None,
) -> IncidentLife:
    """Take in the verdict, or that there is none, and plan the next look. `earlier`: incidents of the past."""
    early, more = life.early, life.partial and not life.capturing
    began_ns = life.look_ns if event.look == life.looks else life.judged_look_ns
    life = replace(life, judging=False, judged_look=event.look, judged_look_ns=began_ns, early=False, partial=False)
    report = event.report
    if not early:
        life = replace(life, look_took_ns=now_ns - began_ns)
    if early and not (report and report.verdicts and report.verdicts[0].cause == "process_stopped"):
        return replace(life, judged_look=event.look - 1)  # nothing else is said by half a look
    if report is None or not report.verdicts:
        why = event.problem or "the report holds no verdict"
        incident = noted(life.incident, f"look {event.look} could not be judged: {why}", wall_ns, actions)
        life = replace(life, incident=incident, judgements_failed=life.judgements_failed + 1)
        return _look_later(life, now_ns)
    if life.family == "slow":
        life, report = _measured(life, report, now_ns)
    verdict, before = report.verdicts[0], life.incident.verdict
    if before is not None and before.traits.accuses and not verdict.traits.accuses and _stays_accused(life, facts):
        what = f"look {event.look}: now {verdict.cause}; the verdict stands"
        life = replace(life, incident=noted(life.incident, what, wall_ns, actions))
        return _look_later(life, now_ns) if life.family == "slow" else life
    shared = life.incident.together
    if shared is not None and shared.nodes and before is not None:
        # Of a job on several nodes this node sees a part: what all of them say together stands.
        return _look_later(life, now_ns) if not verdict.traits.accuses else life
    life = _with_verdict(life, report, earlier, now_ns, wall_ns, actions)
    if more and verdict.cause == "undecided":
        return replace(life, judged_look=event.look - 1)  # its last evidence came while it was judged
    return _plan(life, verdict, config, now_ns)


def _measured(life: IncidentLife, report: Report, now_ns: int) -> tuple[IncidentLife, Report]:
    """Of ranks that were found slow: what was measured of them counts, and is confirmed by a verdict that agrees."""
    verdict = slowness.measured(life.incident, report.verdicts)
    if life.confirmed_ns is None and slowness.agrees(life.incident, verdict):
        life = replace(life, confirmed_ns=now_ns)
    return life, replace(report, verdicts=slowness.with_measured(verdict, report.verdicts, life.incident))


def with_what_is_sure_now(life: IncidentLife, at_ns: int, wall_ns: int, actions: list[Action]) -> IncidentLife:
    """Of ranks that are surely slow now what the last look found of them is told: another one takes ten seconds."""
    report, shared = life.incident.report, life.incident.together
    if life.family != "slow" or report is None or len(report.verdicts) < 2:
        return life
    if shared is not None and shared.nodes:
        return life  # of a job on several nodes what all of them say together stands
    verdict = slowness.measured(life.incident, report.verdicts)
    if not verdict.traits.holds_back:
        return life
    return _with_verdict(life, replace(report, verdicts=(verdict,)), (), at_ns, wall_ns, actions)


def _stays_accused(life: IncidentLife, facts: JobFacts | None) -> bool:
    """Whether what was known and told is not unknown again by a look that accuses nobody: the job may be being torn
    down, or a rank no longer answers. Of a slow rank its symptom says when it is over; what is seen of the dead does
    not show why they stood. Where one of them left with exit code 0, the culprit or who waited for it, that wait is
    over, unless the job had failed before: a last save of a minute was told, as critical, while rank 0 exported alone,
    and so was storage that stood before the last step."""
    if life.incident.severity != "none" or life.family == "slow":
        return True
    return died(life.incident.findings) and not _left_in_order(life.incident.verdict, facts)


def _left_in_order(verdict: Verdict | None, facts: JobFacts | None) -> bool:
    """Whether all whom it accuses, or one of those who waited for them, ended their program in order since."""
    if verdict is None or facts is None or facts.failed:
        return False
    left, culprits = set(facts.left), set(verdict.culprits)
    return (bool(culprits) and culprits <= left) or not left.isdisjoint(ranks_in(verdict.waiting))


def _with_verdict(
    life: IncidentLife,
    report: Report,
    earlier: Sequence[Incident],
    now_ns: int,
    wall_ns: int,
    actions: list[Action],
) -> IncidentLife:
    """The incident with what this node has judged, and whether it was so before; adds to the actions."""
    verdict, still = report.verdicts[0], _is_same(life.incident.verdict, report.verdicts[0])
    life = with_report(life, report, now_ns)
    what = f"verdict{' still' if still else ''}: {verdict.cause} ({verdict.confidence}): {verdict.summary}"
    return replace(life, incident=noted(_with_recurrence(life.incident, earlier), what, wall_ns, actions))


def with_report(life: IncidentLife, report: Report, now_ns: int) -> IncidentLife:
    """Return the incident with this report, of this node or of all nodes of the job, and in the state that its verdict
    puts it into. The verdict stands since it was first the same."""
    incident, verdict = life.incident, report.verdicts[0]
    if report.deadline is None and verdict.cause != "healthy" and incident.report is not None:
        # What it stands in is what earlier looks saw, whose ranks or recorders may not answer any more.
        report = replace(report, deadline=incident.report.deadline)
    known_ns = incident.verdict_since_ns if _is_same(incident.verdict, verdict) else None
    since_ns = known_ns if known_ns is not None else now_ns
    state, moved_ns = state_by(life, verdict), life.moved_ns
    if verdict.traits.state == "waits" or verdict.cause == "healthy":  # of which each rank was seen to move
        moved_ns = life.judged_look_ns
    incident = replace(incident, report=named(report, incident), state=state, verdict_since_ns=since_ns)
    return replace(life, incident=incident, moved_ns=moved_ns)


def _is_same(before: Verdict | None, verdict: Verdict) -> bool:
    return before is not None and (before.cause, before.culprits) == (verdict.cause, verdict.culprits)


def is_known_to_stand(incident: Incident, now_ns: int) -> bool:
    """Whether looks so far show a job that stands: what holds its ranks for long may be asked of them. Of a wait of
    seconds nobody has been told; one that passed was looked at for a third time, and eight ranks stood for 150 ms."""
    verdict = incident.verdict
    if verdict is None or not (verdict.cause == "undecided" or verdict.traits.stands):
        return False
    told = (incident.severity, incident.withheld) != ("none", "none")
    return told or now_ns - incident.since_ns >= _STANDS_SECONDS * SECOND_NS


def with_new_waits(life: IncidentLife, facts: JobFacts | None, now_ns: int) -> IncidentLife:
    """A rank that waits for the first time in an incident, of which no look has named anybody, is looked at soon and
    then again: what it waits for began since. All of a job's ranks rolled out; two came back and waited for the third,
    which stood, and the next look was due after four minutes. Those looks are two a rank at most and come besides the
    others: of seven ranks that came back a minute apart they had used up all looks at an incident within 216 s, and
    the eighth, which stood, was looked at no more."""
    verdict = life.incident.verdict
    if life.family != "hang" or facts is None or set(facts.waiting) <= set(life.waiting):
        return life
    waiting = tuple(sorted({*life.waiting, *facts.waiting}))
    if verdict is None or verdict.traits.accuses:
        return replace(life, waiting=waiting)
    seconds = min(_NEW_WAIT_SECONDS + life.looks_at_waits, _LAST_NEW_WAIT_SECONDS)
    if life.capturing or life.judging or now_ns < life.look_ns + int(seconds * SECOND_NS):
        return life
    instead = life.next_look_ns is not None and not life.waits_due  # of one that comes later: the back-off stays
    repeats = max(life.repeats - 1, 0) if instead else life.repeats
    return replace(life, waiting=waiting, waits_due=_LOOKS_AT_WAITS, repeats=repeats, next_look_ns=now_ns)


def look_and_judge(life: IncidentLife, config: Config, now_ns: int, actions: list[Action]) -> IncidentLife:
    """Begin the look that is due, and have judged what is ready."""
    if life.family == "health":
        return life
    if life.next_look_ns is not None and life.next_look_ns <= now_ns and not _is_awaited(life, now_ns):
        at_waits = life.waits_due > 0
        late = life.tells_next and now_ns - life.look_ns >= _LAST_REPEAT_SECONDS * SECOND_NS
        if not (at_waits or late) and life.looks - life.looks_at_waits >= config.incidents.maximum_looks:
            return replace(life, next_look_ns=None, tells_next=False)
        if life.capturing:
            actions.append(CancelCapture(life.incident.incident_id))
        life = replace(life, looks=life.looks + 1, look_ns=now_ns, capturing=True, ready=False)
        life = replace(life, next_look_ns=None, tells_next=False)
        if at_waits:
            life = replace(life, waits_due=life.waits_due - 1, looks_at_waits=life.looks_at_waits + 1)
        actions.append(StartCapture(life.incident, life.looks))
    if died(life.incident.findings) and begins_soon(life, now_ns):
        return life  # what was seen before shows nothing of it
    confirmed = life.confirmed_ns is not None and life.confirmed_ns <= now_ns
    # Times of arrival settle what statistics only suspect: for a slow rank the first look is worth a judgement.
    worth_it = confirmed or life.family == "slow"
    if worth_it and life.ready and not life.judging and life.judged_look < life.looks:
        actions.append(Judge(life.incident, life.looks))
        return replace(life, judging=True, partial=life.capturing)
    early_ns = _early_judgement_ns(life)
    if confirmed and early_ns is not None and now_ns >= early_ns:
        actions.append(Judge(life.incident, life.looks))
        return replace(life, judging=True, early=True, early_done=True)
    return life


def after_a_death(incident: Incident, family: Family, now_ns: int) -> IncidentLife:
    """An incident that begins with a rank's end."""
    return IncidentLife(incident, family, confirmed_ns=now_ns, next_look_ns=now_ns + ENDS_TOGETHER_NS)


def due_ns(life: IncidentLife) -> int | None:
    """When something of an incident is to be done that cannot wait for the next tick; None: nothing is."""
    return life.next_look_ns if died(life.incident.findings) else _early_judgement_ns(life)


def _early_judgement_ns(life: IncidentLife) -> int | None:
    """When what is known of a stop is judged, should its first look not be done by then; None of all else."""
    if not life.capturing or life.judging or life.judged_look or life.early_done:
        return None
    stopped = any(f.detector == "stopped" and f.stage == "confirmed" for f in life.incident.findings)
    return life.look_ns + int(_EARLY_SECONDS * SECOND_NS) if stopped else None


def _is_awaited(life: IncidentLife, now_ns: int) -> bool:
    """The last look sees a slow rank over some seconds, or is yet to be judged: the next is not so urgent."""
    seconds = slowness.look_seconds(life.incident, life.looks)
    return now_ns - life.look_ns < SECOND_NS * seconds and (life.capturing or life.judged_look < life.looks)


def noted(incident: Incident, what: str, wall_ns: int, actions: list[Action]) -> Incident:
    """Return the incident with one more event, and have it logged and saved."""
    incident = replace(incident, events=(*incident.events, IncidentEvent(wall_ns, what)))
    actions += [Note(incident.incident_id, what), Save(incident)]
    return incident


def state_by(life: IncidentLife, verdict: Verdict) -> IncidentState:
    """The state that a verdict puts an incident into."""
    if life.family == "slow" and not verdict.traits.holds_back:
        return "suspect"
    return "suspect" if verdict.cause == "healthy" else "open"


def named(report: Report, incident: Incident) -> Report:
    """A report that says which incident it is of."""
    return replace(
        report,
        incident_id=incident.incident_id,
        training_job=incident.job.training_job,
        epoch=incident.job.epoch,
    )


def _with_recurrence(incident: Incident, earlier: Sequence[Incident]) -> Incident:
    sentence = recurrence(incident, earlier)
    if not sentence or incident.report is None or incident.verdict is None:
        return incident
    fact = Fact(sentence, "incidents kept on this node")
    verdict = replace(incident.verdict, because=(*incident.verdict.because, fact))
    return replace(incident, report=replace(incident.report, verdicts=(verdict, *incident.report.verdicts[1:])))


def _plan(life: IncidentLife, verdict: Verdict, config: Config, now_ns: int) -> IncidentLife:
    if life.family == "request":
        return life
    if not verdict.traits.accuses or (life.family == "slow") != verdict.traits.holds_back:
        return _look_later(life, now_ns)
    second = now_ns + int(config.stall.second_look_seconds * SECOND_NS)
    return replace(life, next_look_ns=second if life.looks == 1 and not died(life.incident.findings) else None)


def look_before(life: IncidentLife, told_ns: int | None, now_ns: int) -> IncidentLife:
    """Plan a look before the moment at which somebody is told or paged, one more where all have been taken long ago: of
    a start, or of a time-out of hours, what was to be told was what was seen in the first 40 minutes."""
    if told_ns is None or life.family not in ("hang", "slow"):
        return life
    before_ns = max(int(_BEFORE_SECONDS * SECOND_NS), min(life.look_took_ns, int(_MOST_BEFORE_SECONDS * SECOND_NS)))
    look_ns = told_ns - before_ns
    planned = life.next_look_ns is not None and life.next_look_ns <= max(look_ns, now_ns)
    if planned or life.capturing or life.look_ns >= look_ns or told_ns - now_ns <= SECOND_NS:
        return life
    return replace(life, next_look_ns=max(look_ns, now_ns), tells_next=True)


def _look_later(life: IncidentLife, now_ns: int) -> IncidentLife:
    life = replace(life, tells_next=False)  # what is planned now comes before the look for who is told, and counts
    if life.waits_due:
        return replace(life, next_look_ns=now_ns + int(_FIRST_REPEAT_SECONDS * SECOND_NS))
    verdict = life.incident.verdict
    settles = life.family == "hang" and verdict is not None and verdict.cause == "healthy"
    first_seconds = _SETTLED_SECONDS if settles else _FIRST_REPEAT_SECONDS
    seconds = min(first_seconds * 2**life.repeats, _LAST_REPEAT_SECONDS)
    return replace(life, repeats=life.repeats + 1, next_look_ns=now_ns + int(seconds * SECOND_NS))
