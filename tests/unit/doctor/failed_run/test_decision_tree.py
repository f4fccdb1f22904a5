from pathlib import Path

import msgspec
import pytest

from stallwatch.doctor.check import Inapplicable
from stallwatch.doctor.failed_run.decision_tree import DecisionTree
from stallwatch.doctor.surroundings import Question, Surroundings
from stallwatch.model.incident import Incident
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import Cause, CulpritProcess, Frame, Report, Verdict, Where
from tests.unit.doctor.fakes import Node, one

NOW_NS = 1_000_000 * 10**9


def incident(
    node: Node, number: int, step: int | None, *, cause: Cause = "not_entered", where: Where = "user_code",
    line: int = 10, job: str = "job", opened_ns: int = NOW_NS,
) -> None:  # fmt: skip
    frame = Frame("/job/train.py", line, "main")
    verdict = Verdict(
        cause, (1,), "certain", "…", where=where, culprit_processes=(CulpritProcess(1, where=where, frame=frame),)
    )
    report = Report(1, "0", None, job, "e", None, None, True, (verdict,))
    made = Incident(
        f"{job}-{number}", JobKey(job, "e"), "node1", "resolved", "critical", opened_ns, 0, (), report, "bundle"
    )
    folder = f"incidents/{job}-{number}"
    node.write(f"{folder}/incident.json", msgspec.json.encode(made))
    steps = {} if step is None else {"0": step + 1, "1": step}
    node.write(f"{folder}/bundle.json", msgspec.json.encode({"last_step": steps}))


def around(node: Node, job: str = "") -> Surroundings:
    return node.around(question=Question(incidents=node.root / "incidents", job=job))


def test_hangs_before_the_first_step_are_configuration(node: Node) -> None:
    incident(node, 1, None, cause="init_missing", where="init")
    assert "at its start" in one(DecisionTree().look(around(node))).seen


def test_hangs_at_the_same_step_are_data_or_control_flow(node: Node) -> None:
    for number in range(3):
        incident(node, number, 5000 + number)
    found = one(DecisionTree().look(around(node)))
    assert "always near step" in found.seen
    assert "each time at /job/train.py:10" in found.seen


def test_hangs_at_random_steps_are_told_apart(node: Node) -> None:
    incident(node, 1, 120, line=3)
    incident(node, 2, 4800, line=4)
    found = one(DecisionTree().look(around(node)))
    assert "different steps" in found.seen
    assert "each time" not in found.seen


def test_one_incident_decides_nothing(node: Node) -> None:
    incident(node, 1, 120)
    assert "One incident does not tell" in one(DecisionTree().look(around(node))).why


def test_waits_that_resolved_and_old_incidents_do_not_count(node: Node) -> None:
    incident(node, 1, 120, cause="waiting")
    incident(node, 2, 120, job="old", opened_ns=NOW_NS - 3 * 86400 * 10**9)
    with pytest.raises(Inapplicable):
        DecisionTree().look(around(node))
    assert one(DecisionTree().look(around(node, job="old"))).subject == "old"


def test_a_damaged_incident_is_left_out(node: Node) -> None:
    node.write("incidents/x-1/incident.json", "{")
    incident(node, 1, 7)
    assert "at step 7" in one(DecisionTree().look(around(node))).seen


def test_no_folder_is_nothing_to_look_at(node: Node) -> None:
    for question in (Question(), Question(incidents=Path("/absent"))):
        with pytest.raises(Inapplicable):
            DecisionTree().look(node.around(question=question))
