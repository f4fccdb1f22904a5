import msgspec

from stallwatch.clock import iso
from stallwatch.model.snapshot import SensorStatus
from stallwatch.model.verdict import Report
from stallwatch.outputs.documents import incident_document, incident_list, rank_list, readiness
from tests.builders.clock import WALL_NS
from tests.unit.outputs.reports import diagnosis, incident, node_report, with_snapshot


def test_an_incident_carries_every_field_of_its_report_by_the_same_name() -> None:
    report = diagnosis(caveats=("a dump is cut",))
    document = msgspec.to_builtins(incident_document(incident(report=report)))
    for name, value in msgspec.to_builtins(report).items():
        assert document[name] == value, name


def test_an_incident_without_a_verdict_has_the_same_fields() -> None:
    document = incident_document(incident(report=None, state="suspect", severity="none"))
    assert document.verdicts == ()
    assert document.evidence_complete is False
    assert document.incident_id == "llama-7b-1"
    assert set(Report.__struct_fields__) <= set(document.__struct_fields__)


def test_the_list_leaves_stacks_out_and_mentions_each_incident_once() -> None:
    now, old = incident(), incident(incident_id="llama-7b-0", state="resolved", resolved_wall_ns=WALL_NS)
    documents = incident_list(node_report(now), past=(now, old)).incidents
    assert [document.incident_id for document in documents] == ["llama-7b-1", "llama-7b-0"]
    assert documents[0].verdicts
    assert all(document.stacks is None for document in documents)


def test_unknown_numbers_stay_null() -> None:
    report = node_report()
    blank = msgspec.structs.replace(report.ranks[0], step=None, beat_age_seconds=None)
    (rank,) = msgspec.to_builtins(rank_list(msgspec.structs.replace(report, ranks=(blank,))))["ranks"]
    assert rank["step"] is None
    assert rank["beat_age_seconds"] is None


def test_a_node_without_gpus_is_ready_and_one_whose_required_sensor_is_dead_is_not() -> None:
    normal = node_report()
    assert readiness(normal, []).ready
    assert [problem.name for problem in readiness(normal, []).problems] == ["gpus"]
    dead = with_snapshot(normal, sensors=(SensorStatus("processes", False, "no answer for 40 s", 0, 3),))
    answer = readiness(dead, [])
    assert not answer.ready
    assert answer.problems[0].reason == "no answer for 40 s"


def test_an_output_that_does_not_deliver_is_named_but_does_not_make_the_node_unready() -> None:
    place = SensorStatus("meeting_place", True, "well: redis://h, with node-b", 0.0, 0, required=False)
    meets = readiness(with_snapshot(node_report(), sensors=(place,)), [])
    assert (meets.problems, meets.meeting_place) == ((), "well: redis://h, with node-b")
    answer = readiness(node_report(), [("slack", "refused: 404")])
    assert answer.ready
    assert [(problem.part, problem.name) for problem in answer.problems][-1] == ("output", "slack")


def test_times_are_utc() -> None:
    assert iso(WALL_NS + 1_500_000_000) == "2026-01-01T00:00:01.500Z"
