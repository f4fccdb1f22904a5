"""Jobs that were looked at twice while they moved."""

from tests.simulator.run import play


def test_where_half_of_the_ranks_move_what_all_have_entered_is_not_said_to_hang() -> None:
    found = play(80010085, 64)
    assert found is not None
    assert (found.case.truth.cause, found.right) == ("healthy", True), found.verdict


def test_what_a_thread_beside_reports_is_no_motion_of_a_main_thread_that_waits() -> None:
    found = play(91000224, 64)
    assert found is not None
    assert found.right, found.verdict
