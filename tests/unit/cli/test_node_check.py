"""Which verdicts prove that a node is unfit."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from stallwatch.cli.node_check import unfit
from stallwatch.model.verdict import CulpritProcess
from stallwatch.outputs.documents import IncidentDocument, incident_document
from tests.unit.outputs.reports import NODE, diagnosis, incident, verdict


def one(
    cause: str = "gpu_fault", confidence: str = "certain", host: str | None = NODE, **changes: Any
) -> IncidentDocument:
    said = verdict(cause=cause, confidence=confidence, culprit_processes=(CulpritProcess(2, host),))
    return msgspec.structs.replace(incident_document(incident(report=diagnosis(said))), **changes)


def test_a_certain_fault_of_this_nodes_hardware_is_a_proof() -> None:
    (why,) = unfit([one()], NODE, 0.0)
    assert why.startswith("gpu_fault in llama-7b-1: ")


@pytest.mark.parametrize(
    "innocent",
    [
        one("not_entered"),
        one("gpu_kernel_stuck"),
        one(confidence="likely"),
        one(host="another"),
        one(judged="wrong"),
        one(verdicts=()),
    ],
    ids=["no hardware", "perhaps the job's own", "not certain", "another node", "called wrong", "no verdict"],
)
def test_nothing_less_is(innocent: IncidentDocument) -> None:
    assert list(unfit([innocent], NODE, 0.0)) == []


def test_what_was_before_the_node_was_booted_is_over() -> None:
    opened = datetime.fromisoformat(one().opened_at).timestamp()
    assert list(unfit([one()], NODE, opened + 1)) == []
