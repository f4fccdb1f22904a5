"""What a node's outputs have told is handed on, and who speaks next goes on from there."""

import msgspec

from stallwatch.incidents.delivery_steps import due
from stallwatch.model.incident import OutputTold
from stallwatch.outputs.spool import Message, Spool
from tests.unit.outputs.reports import incident

ID = "llama-7b-1"


def queued(*steps: str) -> tuple[Spool, Message]:
    message = Message(ID, "told", 0, msgspec.Raw(b"{}"))
    spool, _ = Spool().with_message(message, ("told", "escalated"), "not_entered 2")
    return spool, spool.queue[0]


def test_what_waits_has_not_been_told() -> None:
    spool, message = queued()
    assert spool.delivered(ID).steps == ()
    assert spool.without([message]).delivered(ID) == OutputTold(("told", "escalated"), "not_entered 2")


def test_what_another_node_has_told_is_not_told_again() -> None:
    elsewhere = OutputTold(("told", "escalated"), "not_entered 2", "C1/17.1")
    spool = Spool().with_delivered(ID, elsewhere)
    one = incident()
    assert due(one, spool.told[ID], "warning", spool.verdicts[ID]) is None
    resolved = msgspec.structs.replace(one, state="resolved")
    assert due(resolved, spool.told[ID], "warning", spool.verdicts[ID]) == "resolved"
    assert spool.threads[ID] == "C1/17.1", "the end goes into the thread of the beginning"


def test_another_verdict_than_the_one_that_was_told_is_an_update() -> None:
    spool = Spool().with_delivered(ID, OutputTold(("told", "escalated"), "undecided "))
    assert due(incident(), spool.told[ID], "warning", spool.verdicts[ID]) == "updated"


def test_what_was_told_here_stands() -> None:
    spool, message = queued()
    spool = spool.without([message])
    assert spool.with_delivered(ID, OutputTold(("told",), "other")) is spool


def test_what_waits_here_and_was_told_by_another_node_meanwhile_is_not_sent_any_more() -> None:
    spool, _ = queued()
    spool = spool.with_delivered(ID, OutputTold(("told",), "undecided ", "C1/17.1"))
    assert spool.queue == ()
    critical = incident(severity="critical")
    assert due(critical, spool.told[ID], "warning", spool.verdicts[ID]) == "escalated", "it was told as a warning alone"
    assert spool.threads[ID] == "C1/17.1"
    assert spool.delivered(ID) == OutputTold(("told",), "undecided ", "C1/17.1")


def test_what_waits_of_another_incident_or_another_step_goes_on_waiting() -> None:
    spool, _ = queued()
    spool, _ = spool.with_message(Message(ID, "resolved", 0, msgspec.Raw(b"{}")), ("resolved",))
    spool, _ = spool.with_message(Message("other", "told", 0, msgspec.Raw(b"{}")), ("told",))
    spool = spool.with_delivered(ID, OutputTold(("told",)))
    assert [(one.incident_id, one.step) for one in spool.queue] == [(ID, "resolved"), ("other", "told")]


def test_an_escalation_that_waits_by_itself_is_queued_once() -> None:
    spool, _ = Spool().with_message(Message(ID, "told", 0, msgspec.Raw(b"{}")), ("told",), "not_entered 2")
    spool, _ = spool.with_message(Message(ID, "escalated", 0, msgspec.Raw(b"{}")), ("escalated",), "not_entered 2")
    spool = spool.with_delivered(ID, OutputTold(("told",), "not_entered 2"))
    assert [one.step for one in spool.queue] == ["escalated"]
    assert due(incident(severity="critical"), spool.told[ID], "warning", spool.verdicts[ID]) is None
