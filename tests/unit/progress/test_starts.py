"""When a job that has not begun to step, and of which nothing shows that it is stuck, is told."""

from typing import Any

import pytest

from stallwatch.config import Config
from stallwatch.config_sections import TellSection
from stallwatch.progress.patience import plan
from tests.unit.progress.test_patience import KNOWN, SECOND, STANDS, TELL, planned, stages, standstill

# Torch's shortest default, of NCCL, is ten minutes.
BEFORE_DEFAULT = 600 * TELL.waiting_share
KNOWN_AFTER = (KNOWN - STANDS) / SECOND

NOBODY: dict[str, Any] = {"culprits": ()}
ALONE: dict[str, Any] = {"culprits": (), "waiting": ""}


@pytest.mark.parametrize("cause", ["undecided", "waiting"])
def test_a_start_that_torch_is_about_to_end_is_told_before(cause: str) -> None:
    told = plan(standstill(cause, begun=False, deadline_ns=STANDS + 1000 * SECOND), Config())
    assert stages(told) == [(1000 * TELL.waiting_share, "warning")]
    assert "has not begun" in told.why
    assert "tell.waiting_share" in told.why


def test_a_start_whose_ranks_wait_for_nobody_knows_whom_is_told_once_starts_do_not_last_so_long() -> None:
    told = plan(standstill("undecided", of_verdict=NOBODY, begun=False), Config())
    assert stages(told) == [(TELL.unbegun_seconds, "warning")]
    assert "has not begun" in told.why
    assert "tell.unbegun_seconds" in told.why
    assert TELL.unbegun_seconds > 3600, "the longest starts that were reported"
    soon = Config(tell=TellSection(unbegun_seconds=7.0))
    assert stages(plan(standstill("undecided", of_verdict=NOBODY, begun=False), soon)) == [(7, "warning")]


@pytest.mark.parametrize("clock", ["worked_ns", "moved_ns"])
def test_a_start_is_told_that_long_after_it_last_did_anything(clock: str) -> None:
    def told(moment_ns: int) -> list[tuple[float, str]]:
        return planned("undecided", of_verdict=NOBODY, begun=False, **{clock: moment_ns})

    assert told(STANDS + 3000 * SECOND) == [(3000 + TELL.unbegun_seconds, "warning")]
    assert told(STANDS - SECOND) == [(TELL.unbegun_seconds, "warning")]


def test_a_start_that_ends_by_itself_for_longer_than_that_has_the_longer_patience() -> None:
    compiles = {**NOBODY, "ends_by_itself": "compile"}
    long = Config(tell=TellSection(compile_seconds=9000.0))
    assert stages(plan(standstill("undecided", of_verdict=compiles, begun=False), long)) == [(9000, "warning")]
    assert planned("undecided", of_verdict=compiles, begun=False) == [(TELL.unbegun_seconds, "warning")]


def test_a_start_of_which_ranks_are_elsewhere_has_twice_the_time() -> None:
    """One rank alone, on a node that is not seen, prepares data for up to three hours."""
    unseen = planned("undecided", of_verdict=NOBODY, begun=False, works_unseen=True)
    assert unseen == [(2 * TELL.unbegun_seconds, "warning")]
    assert unseen[0][0] >= 3 * 3600


@pytest.mark.parametrize("changes", [{}, {"deadline_ns": STANDS + 1000 * SECOND}, {"elsewhere": True}])
@pytest.mark.parametrize("of_verdict", [ALONE, {**ALONE, "missing": ["a dump"]}, {**ALONE, "ends_by_itself": "sleep"}])
def test_a_server_that_counts_no_steps_is_told_of_by_nobody_while_no_rank_waits_for_another(
    of_verdict: dict[str, Any], changes: dict[str, Any]
) -> None:
    told = plan(standstill("undecided", of_verdict=of_verdict, begun=False, **changes), Config())
    assert told.stages == ()
    assert "has not begun" in told.why


def test_a_start_whose_culprit_makes_progress_is_told_by_nobody_where_its_time_out_is_not_known() -> None:
    told = plan(standstill("waiting", begun=False, known_ns=KNOWN), Config())
    assert told.stages == ()
    assert "makes progress" in told.why


@pytest.mark.parametrize("cause", ["undecided", "waiting"])
def test_a_start_without_a_hook_is_told_by_nobody(cause: str) -> None:
    """Ranks that wait in RPC's shutdown, in a broadcast without end, are how idle servers and actors stand."""
    for deadline_ns in (None, STANDS + 1000 * SECOND):
        told = plan(standstill(cause, begun=False, hooked=False, deadline_ns=deadline_ns), Config())
        assert told.stages == ()
        assert "without a hook" in told.why


@pytest.mark.parametrize("cause", ["not_entered", "undecided"])
def test_a_server_without_requests_for_which_its_workers_wait_has_the_patience_of_a_start(cause: str) -> None:
    """They are in RPC's shutdown, where workers serve; who waits in a broadcast is ended by torch."""
    serves = {"ends_by_itself": "request"}
    assert planned(cause, of_verdict=serves, begun=False) == [(TELL.unbegun_seconds, "warning")]
    near = planned(cause, of_verdict=serves, begun=False, deadline_ns=STANDS + 1000 * SECOND)
    assert near == [(1000 * TELL.waiting_share, "warning")]
    assert planned(cause, of_verdict={**serves, "waiting": ""}, begun=False) == []
    assert planned(cause, of_verdict=serves)[0] == (TELL.request_seconds, "warning"), "it counts steps: it trains"


def test_a_start_in_which_one_computes_for_the_others_has_the_patience_of_what_moves() -> None:
    """Tokenising, or an index that is built in one call, was told at half of the time-out, or after five minutes."""
    computes = {"ends_by_itself": "compute"}
    told = plan(
        standstill("not_entered", of_verdict=computes, begun=False, deadline_ns=STANDS + 1000 * SECOND), Config()
    )
    assert stages(told)[0] == (1000 * TELL.waiting_share, "warning")
    assert "tell.waiting_share" in told.why
    told = plan(standstill("not_entered", of_verdict=computes, begun=False), Config())
    assert stages(told)[0] == (KNOWN_AFTER + BEFORE_DEFAULT, "warning")
    assert "tell.start_seconds" in told.why
    reads = planned("not_entered", of_verdict={"ends_by_itself": "storage"}, begun=False)
    assert reads[0] == (KNOWN_AFTER + TELL.start_seconds, "warning")


@pytest.mark.parametrize("where", ["init", "store"])
@pytest.mark.parametrize(
    ("cause", "of_verdict"), [("undecided", NOBODY), ("not_entered", {"ends_by_itself": "request"})]
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_ranks_that_join_are_told_before_torchs_default_ends_them(
    where: str, cause: str, of_verdict: dict[str, Any], elsewhere: bool
) -> None:
    """No record tells the time-out of a rendezvous: taken for none, it was told an hour after torch had ended it."""
    joins = {**of_verdict, "waiting_where": where}
    told = plan(standstill(cause, of_verdict=joins, begun=False, elsewhere=elsewhere), Config())
    assert stages(told) == [(KNOWN_AFTER + BEFORE_DEFAULT, "warning")]
    assert "time-out is not known" in told.why
    assert planned(cause, of_verdict=joins, begun=False, moved_ns=STANDS + 900 * SECOND)[0][0] == 900 + BEFORE_DEFAULT


@pytest.mark.parametrize("kind", ["compute", "request"])
def test_who_has_not_come_to_the_rendezvous_is_told_before_torchs_default_ends_it(kind: str) -> None:
    told = planned("init_missing", of_verdict={"ends_by_itself": kind}, begun=False)
    assert told[0] == (KNOWN_AFTER + BEFORE_DEFAULT, "warning")


def test_what_moves_has_never_less_time_than_what_does_not() -> None:
    config = Config(tell=TellSection(waiting_share=0.1))
    told = stages(plan(standstill("init_missing", of_verdict={"ends_by_itself": "compute"}, begun=False), config))
    assert told[0] == (KNOWN_AFTER + TELL.start_seconds, "warning")
