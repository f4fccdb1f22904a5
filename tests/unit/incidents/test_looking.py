import pytest

from stallwatch.incidents.looking import is_known_to_stand
from tests.unit.incidents.stories import Story, report, stall


@pytest.mark.parametrize(
    ("cause", "stands"),
    [
        ("not_entered", True),
        ("collective_mismatch", True),
        ("comm_stuck", True),
        ("undecided", True),
        ("healthy", False),
        ("waiting", False),
        ("slow_rank", False),
    ],
)
def test_what_holds_ranks_for_long_is_asked_of_those_alone_that_were_seen_to_stand(cause: str, stands: bool) -> None:
    """A job that moves, and one that somebody captures on demand, pays no more than some milliseconds a look."""
    story = Story()
    story.at(6, stall())
    assert not is_known_to_stand(story.incident)
    story.looked()
    story.at(9, stall("confirmed"))
    story.looked()
    story.judged(report(cause))
    assert is_known_to_stand(story.incident) is stands
