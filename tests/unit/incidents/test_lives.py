"""Whatever happens in whatever order, the life of incidents keeps its promises."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Action, Captured, Event, Judge, Judged, StartCapture
from stallwatch.model.finding import Finding
from tests.unit.incidents.stories import Story, facts, finding, report, stall

ORDER = {"none": 0, "warning": 1, "critical": 2}
FINDINGS = st.lists(
    st.sampled_from(
        [
            stall(),
            stall("confirmed"),
            finding("slow"),
            finding("exit", resolvable=False),
            finding("stopped", "suspect", resolvable=False),
        ]
    ),
    max_size=3,
    unique_by=lambda f: f.detector,
)
JOBS = st.sampled_from([facts(), facts(moved=True), facts(alive=()), facts(ending=True), facts(opted_out=True)])
NEWS = st.sampled_from(["nothing", "complete", "done", "lost", "not_entered", "waiting", "healthy", "rank_exited", ""])


def news_of(kind: str, lives: IncidentTable) -> list[Event]:
    events: list[Event] = []
    for life in lives.active:
        name, look = life.incident.incident_id, life.looks
        if kind in ("complete", "done", "lost"):
            events.append(Captured(name, look, complete=kind == "complete", done=kind != "complete"))
        elif kind != "nothing" and life.judging:
            events.append(Judged(name, life.judged_look + 1, report(kind) if kind else None, "no verdict"))
    return events


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(FINDINGS, JOBS, NEWS, st.sampled_from([1.0, 4.0, 70.0])), max_size=25))
def test_promises(steps: list[tuple[list[Finding], object, str, float]]) -> None:
    story = Story()
    severities: dict[str, int] = {}
    judging: set[str] = set()
    looks: dict[str, int] = {}
    for findings, job, kind, pause in steps:
        before = msgspec.json.encode(story.lives)
        events = news_of(kind, story.lives)
        judging -= {event.incident_id for event in events if isinstance(event, Judged)}
        kept = story.lives
        actions = story.at(story.second + pause, *findings, jobs=[job], events=events)  # type: ignore[list-item]
        assert msgspec.json.encode(kept) == before, "states are not changed in place"
        _promised(story, actions, severities, judging, looks)


def _promised(
    story: Story, actions: list[Action], severities: dict[str, int], judging: set[str], looks: dict[str, int]
) -> None:
    subjects = [(life.incident.job, life.family) for life in story.lives.active]
    assert len(subjects) == len(set(subjects)), "one incident per family and job"
    for action in actions:
        if isinstance(action, StartCapture):
            name = action.incident.incident_id
            assert action.look == looks.get(name, 0) + 1, "looks are numbered without gaps"
            looks[name] = action.look
        if isinstance(action, Judge):
            assert action.incident.incident_id not in judging, "one judgement at a time"
            judging.add(action.incident.incident_id)
    for life in story.lives.active:
        incident = life.incident
        now = ORDER[incident.severity]
        assert now >= severities.get(incident.incident_id, 0), "what was told is not taken back"
        severities[incident.incident_id] = now
        if incident.severity != "none":
            assert life.confirmed_ns is not None, "nobody hears of a mere suspicion"
        if incident.severity == "critical":
            assert incident.verdict is not None


def test_a_difference_too_small_for_one_look_is_told_by_its_statistics() -> None:
    story = Story()
    story.at(1, finding("slow", "suspect"), jobs=[facts(moved=True)])
    story.looked()
    story.judged(report("healthy", ()))
    assert story.severity == "none"
    slow = finding("slow")
    while story.second < 60:
        story.at(story.second + 1, slow)
        if story.life.capturing:
            story.looked()
        if story.life.judging:
            story.judged(report("healthy", ()))
    verdict = story.incident.verdict
    assert verdict is not None
    assert (verdict.cause, verdict.summary.lower()) == ("slow_rank", slow.reason)
    assert [rejected.cause for rejected in verdict.rejected] == ["healthy"]
    assert story.severity == "warning"
