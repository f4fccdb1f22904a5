"""What a daemon left unsent of incidents that other nodes see waits for their word, for a time."""

import msgspec
from msgspec.structs import replace

from stallwatch.model.incident import Together
from stallwatch.outputs.left_messages import LeftMessages
from stallwatch.outputs.spool import Message
from tests.builders.clock import SECOND_NS
from tests.unit.outputs.reports import incident

NOW = 7 * SECOND_NS


def message(incident_id: str, *, shared: bool) -> Message:
    return Message(incident_id, "told", 0, msgspec.Raw(b"{}"), "", False, "anna", "train", False, shared=shared)


OURS, SHARED, OTHER = message("ours", shared=False), message("shared", shared=True), message("other", shared=True)


def test_what_others_see_too_waits_and_nothing_else() -> None:
    left = LeftMessages((OURS, SHARED), NOW)
    assert left.ready((OURS, SHARED, OTHER), NOW) == (OURS, OTHER), "what comes now is known to be ours"
    assert left.until_ns == NOW + 40 * SECOND_NS


def test_it_waits_for_forty_seconds_and_no_longer() -> None:
    left = LeftMessages((SHARED,), NOW)
    assert left.ready((SHARED,), left.until_ns - 1) == ()
    assert left.ready((SHARED,), left.until_ns) == (SHARED,)
    assert left.ready((SHARED,), NOW) == (SHARED,), "and not again"


def test_the_word_of_the_nodes_ends_the_wait_for_its_own_incident() -> None:
    left = LeftMessages((SHARED, OTHER), NOW)
    elsewhere = replace(incident(), incident_id="other", together=Together(why="node1 tells"))
    assert elsewhere.told_elsewhere
    left.note([replace(incident(), incident_id="shared"), elsewhere])
    assert left.ready((SHARED, OTHER), NOW) == (SHARED,)


def test_what_is_well_again_waits_for_nobody() -> None:
    left = LeftMessages((SHARED, OTHER), NOW)
    elsewhere = replace(incident(), together=Together(why="node1 tells"))
    left.note(
        [
            replace(elsewhere, incident_id="shared", state="resolved"),
            replace(elsewhere, incident_id="other", state="ended"),
        ]
    )
    assert left.ready((SHARED, OTHER), NOW) == (SHARED,), "where ranks have died others may stand, and another tells"


def test_where_nothing_was_left_nothing_is_waited_for() -> None:
    assert LeftMessages((OURS,), NOW).until_ns == 0
    assert LeftMessages().ready((SHARED,), 0) == (SHARED,)
