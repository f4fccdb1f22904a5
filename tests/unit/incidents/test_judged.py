"""What people say of verdicts is kept with the incident, and counted by cause."""

import msgspec

from stallwatch.incidents import judged
from stallwatch.incidents.life import IncidentTable
from stallwatch.incidents.messages import Action, Save, VerdictJudged
from stallwatch.model.incident import Incident, JudgedCount, Judgement
from tests.unit.outputs.reports import incident


def say(lives: IncidentTable, one: Incident, judgement: Judgement) -> tuple[IncidentTable, list[Incident]]:
    """The next state, and what is saved."""
    actions: list[Action] = []
    after = judged.heard(lives, VerdictJudged(one.incident_id, judgement, "anna", one), 0, actions)
    return after, [action.incident for action in actions if isinstance(action, Save)]


def test_a_verdict_of_lately_is_judged_and_the_same_said_again_changes_nothing() -> None:
    over = incident(state="resolved")
    lives, (saved,) = say(IncidentTable(past=(over,)), over, "wrong")
    assert lives.past == (saved,)
    assert saved.judged == "wrong"
    assert saved.events[-1].what == "its verdict was wrong, says anna"
    assert lives.judged == (JudgedCount("not_entered", "wrong", 1),)
    assert say(lives, over, "wrong") == (lives, [])
    changed, _ = say(lives, over, "right")
    assert changed.judged == (JudgedCount("not_entered", "wrong", 1), JudgedCount("not_entered", "right", 1))


def test_one_that_is_only_in_the_store_is_saved_there() -> None:
    old = incident(incident_id="llama-7b-0", state="ended")
    lives, (saved,) = say(IncidentTable(), old, "right")
    assert (saved.incident_id, saved.judged) == ("llama-7b-0", "right")
    assert lives.past == ()
    assert lives.judged == (JudgedCount("not_entered", "right", 1),)


def test_what_has_no_verdict_is_not_judged() -> None:
    lives = IncidentTable()
    assert say(lives, msgspec.structs.replace(incident(), report=None), "right") == (lives, [])
