"""When a standstill is told: stages, each with its moment and why not sooner."""

from typing import Any, get_args

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import StallSection, TellSection
from stallwatch.model.causes import CAUSES
from stallwatch.model.verdict import EndsByItself, Verdict
from stallwatch.progress.patience import Plan, Standstill, plan

SECOND = 1_000_000_000
STANDS, KNOWN = 100 * SECOND, 110 * SECOND
TELL = TellSection()
CRITICAL_AFTER = StallSection().critical_after_seconds


def standstill(cause: str, *, of_verdict: dict[str, Any] | None = None, **changes: Any) -> Standstill:
    body = {"cause": cause, "culprits": (3,), "confidence": "likely", "summary": "", "waiting": "0-2"}
    fixed: dict[str, Any] = {
        "since_ns": STANDS,
        "known_ns": KNOWN,
        "deadline_ns": None,
        "begun": True,
        "hooked": True,
        "suspended": False,
        "in_phase": False,
        "works": False,
        "phase_past_seconds": 0.0,
        "silent": (),
        "elsewhere": False,
        "debugged": (),
    }
    return Standstill(verdict=msgspec.convert({**body, **(of_verdict or {})}, Verdict), **{**fixed, **changes})


def stages(told: Plan) -> list[tuple[float, str]]:
    """Seconds after the job began to stand."""
    return [((at_ns - STANDS) / SECOND, severity) for at_ns, severity in told.stages]


def planned(cause: str, *, of_verdict: dict[str, Any] | None = None, **changes: Any) -> list[tuple[float, str]]:
    return stages(plan(standstill(cause, of_verdict=of_verdict, **changes), Config()))


def of_state(*states: str) -> list[str]:
    return sorted(cause for cause, traits in CAUSES.items() if traits.state in states)


@pytest.mark.parametrize("cause", of_state("slow", "well", "over"))
def test_of_a_job_that_moves_or_is_over_time_tells_nobody(cause: str) -> None:
    assert plan(standstill(cause), Config()) == Plan()


@pytest.mark.parametrize("cause", of_state("at_once"))
def test_what_cannot_resolve_itself_is_told_when_it_is_known(cause: str) -> None:
    assert planned(cause) == [(10, "critical")]
    assert planned(cause, of_verdict={"confidence": "possible"}) == [(10, "warning"), (10 + CRITICAL_AFTER, "critical")]


@pytest.mark.parametrize("cause", [one for one in of_state("stuck") if one != "init_missing"])
def test_what_is_stuck_is_a_warning_first(cause: str) -> None:
    assert planned(cause) == [(10, "warning"), (10 + CRITICAL_AFTER, "critical")]


@pytest.mark.parametrize("kind", get_args(EndsByItself))
def test_what_may_end_by_itself_waits_from_when_it_began_to_stand(kind: str) -> None:
    seconds = getattr(TELL, f"{kind}_seconds")
    told = plan(standstill("not_entered", of_verdict={"ends_by_itself": kind}), Config())
    assert stages(told) == [(seconds, "warning"), (max(seconds, 10 + CRITICAL_AFTER), "critical")]
    assert f"tell.{kind}_seconds" in told.why
    assert planned("p2p_unmatched", of_verdict={"ends_by_itself": kind}) == [(seconds, "critical")]


def test_what_moved_for_a_while_has_its_patience_from_then() -> None:
    def told(moved_ns: int) -> list[tuple[float, str]]:
        return planned("not_entered", of_verdict={"ends_by_itself": "compute"}, moved_ns=moved_ns)

    assert told(STANDS + 50 * SECOND) == [(170, "warning"), (170, "critical")]
    assert told(STANDS - SECOND) == [(120, "warning"), (120, "critical")]


@pytest.mark.parametrize("known_after", [120, 200])
def test_a_patience_that_is_over_before_the_verdict_gives_no_reason(known_after: int) -> None:
    known_ns = STANDS + known_after * SECOND
    told = plan(standstill("not_entered", of_verdict={"ends_by_itself": "storage"}, known_ns=known_ns), Config())
    assert stages(told)[0] == (known_after, "warning")
    assert told.why == ""


def test_a_job_that_is_suspended_as_a_whole_has_the_patience_of_what_moves() -> None:
    told = plan(standstill("process_stopped", suspended=True), Config())
    assert stages(told) == [(TELL.waiting_seconds, "critical")]
    assert "suspended" in told.why
    assert planned("rank_exited", suspended=True) == [(10, "critical")]


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, StallSection().unlearned_seconds),
        ({"operation": "reduce_scatter"}, StallSection().unlearned_seconds),
        ({"operation": "broadcast"}, 1000 * TELL.start_share),  # of the weights
        ({"operation": "barrier"}, 1000 * TELL.start_share),
        ({"seq": 20}, 1000 * TELL.start_share),
        ({"seq": None}, 1000 * TELL.start_share),
        ({"confidence": "likely"}, 1000 * TELL.start_share),
        ({"confidence": "likely", "ends_by_itself": "storage"}, 1000 * TELL.start_share),
    ],
)
def test_a_job_too_young_for_a_rhythm_is_told_where_its_recorders_prove_that_it_trained(
    changes: dict[str, Any], seconds: float
) -> None:
    body = {"confidence": "certain", "operation": "all_reduce", "seq": 41, **changes}
    young = {"begun": False, "deadline_ns": STANDS + 1000 * SECOND}
    assert planned("not_entered", of_verdict=body, **young)[0] == (seconds, "warning")


def test_a_job_that_has_not_begun_waits_for_its_own_time_out_or_the_setting() -> None:
    known = (KNOWN - STANDS) / SECOND
    told = plan(standstill("not_entered", begun=False), Config())
    assert stages(told)[0] == (known + TELL.start_seconds, "warning")
    assert "tell.start_seconds" in told.why
    told = plan(standstill("not_entered", begun=False, deadline_ns=STANDS + 1000 * SECOND), Config())
    assert stages(told)[0] == (1000 * TELL.start_share, "warning")
    assert "tell.start_share" in told.why
    assert planned("init_missing")[0] == (known + TELL.start_seconds, "warning"), "whatever others have begun"
    late = planned("init_missing", known_ns=STANDS + 3300 * SECOND)
    assert late[0] == (3300 + TELL.start_seconds, "warning"), "they loaded weights for most of an hour before"
    for over_ns in (STANDS - SECOND, STANDS):
        over = planned("not_entered", begun=False, deadline_ns=over_ns)
        assert over[0] == (known + TELL.start_seconds, "warning"), "a deadline that is over says nothing"
    assert planned("rank_exited", begun=False) == [(10, "critical")], "a death is none of a start"


@pytest.mark.parametrize(
    ("of_verdict", "changes"),
    [
        ({"confidence": "possible"}, {}),
        ({"where": "init"}, {}),
        ({"where": "user_code"}, {"works": True}),
        ({}, {"in_phase": True}),
        ({}, {"hooked": False}),
    ],
)
def test_a_guess_and_what_is_silent_in_health_too_must_last(
    of_verdict: dict[str, Any], changes: dict[str, Any]
) -> None:
    told = plan(standstill("not_entered", of_verdict=of_verdict, **changes), Config())
    assert stages(told)[0] == (10 + TELL.settle_seconds, "warning")
    assert "tell.settle_seconds" in told.why


def test_what_works_elsewhere_than_in_code_of_the_job_need_not_settle() -> None:
    assert planned("not_entered", of_verdict={"where": "lock"}, works=True)[0] == (10, "warning")
    assert planned("not_entered", of_verdict={"where": "user_code"})[0] == (10, "warning")


def test_where_nothing_comes_any_more_from_a_node_that_others_wait_for_it_is_told_once_it_has_settled() -> None:
    assert planned("undecided", of_verdict={"culprits": ()}) == [(TELL.undecided_seconds, "warning")]
    told = plan(standstill("undecided", of_verdict={"culprits": ()}, silent=("node7",)), Config())
    assert stages(told) == [(10 + TELL.settle_seconds, "warning")]
    assert "nothing comes any more from node7" in told.why


def test_without_a_hook_an_idle_server_is_told_of_by_nobody() -> None:
    alone = {"waiting": ""}
    for cause in ("not_entered", "undecided"):
        for kind in ("network", "sleep", "timeout", "lock"):
            idle = {**alone, "ends_by_itself": kind}
            assert planned(cause, of_verdict=idle, hooked=False) == []
            assert planned(cause, of_verdict=idle) != [], "the hook counts steps: it is a job"
            assert planned(cause, of_verdict={"ends_by_itself": kind}, hooked=False) != [], "others wait for it"
        assert planned(cause, of_verdict={"ends_by_itself": "request"}, hooked=False) == []
    assert planned("not_entered", hooked=False, begun=False) == []
    assert planned("rank_exited", hooked=False, begun=False) == [(10, "critical")]
    assert planned("not_entered", of_verdict={**alone, "ends_by_itself": "storage"}, hooked=False) != []


@pytest.mark.parametrize("operation", ["broadcast", "broadcast_object_list"])
def test_without_a_hook_an_engine_that_polls_at_full_speed_is_told_of_by_nobody(operation: str) -> None:
    """Its workers wait in a broadcast for the next request, for hours. Who waits in a reduction trains."""
    polls = {"operation": operation, "ends_by_itself": "compute", "culprits": (0,), "waiting": "1-3"}
    assert planned("not_entered", of_verdict=polls, hooked=False) == []
    several = {**polls, "culprits": (0, 2), "waiting": "1,3"}  # engines, each of two ranks
    assert planned("not_entered", of_verdict=several, hooked=False) == []
    for kind in (None, "timeout", "lock"):  # at the lock of its queue, say
        assert planned("waiting", of_verdict={**polls, "ends_by_itself": kind}, hooked=False) == []
    assert planned("not_entered", of_verdict=polls) != []
    for cause in ("not_entered", "waiting"):
        assert planned(cause, of_verdict={**polls, "ends_by_itself": "storage"}, hooked=False) != []
    trains = {**polls, "operation": "all_reduce"}
    assert planned("not_entered", of_verdict=trains, hooked=False)[0] == (TELL.compute_seconds, "warning")


@pytest.mark.parametrize("culprits", [(3,), (1, 2)])
def test_who_has_not_come_to_a_broadcast_of_the_first_rank_is_no_engine(culprits: tuple[int, ...]) -> None:
    """Lost in a loop on the CPU, before the buffers that rank 0 sends to all at each step: nobody was told, ever."""
    waiting = ",".join(str(rank) for rank in range(4) if rank not in culprits)
    lost = {"operation": "broadcast", "ends_by_itself": "compute", "culprits": culprits, "waiting": waiting}
    assert planned("not_entered", of_verdict=lost, hooked=False)[0] == (TELL.compute_seconds, "warning")
    assert planned("waiting", of_verdict=lost, hooked=False) != []


def test_undecided_is_told_when_somebody_waits_or_evidence_lacks() -> None:
    told = plan(standstill("undecided"), Config())
    assert stages(told) == [(TELL.undecided_seconds, "warning")]
    assert "it is not known what holds the job up" in told.why
    assert planned("undecided", of_verdict={"waiting": "", "missing": ["a dump"]}) == [
        (TELL.undecided_seconds, "warning")
    ]
    told = plan(standstill("undecided", of_verdict={"waiting": ""}), Config())
    assert stages(told) == [(TELL.idle_seconds, "warning")]
    assert "tell.idle_seconds" in told.why
    assert planned("undecided", of_verdict={"ends_by_itself": "compile"}) == [(TELL.compile_seconds, "warning")]


def test_undecided_without_a_hook_counts_from_the_same_answer() -> None:
    told = plan(standstill("undecided", hooked=False), Config())
    assert stages(told) == [(10 + TELL.undecided_seconds, "warning")]
    assert "nothing but its stacks" in told.why
    for of_verdict in ({"waiting": ""}, {"waiting": "", "missing": ["a dump"]}):
        told = plan(standstill("undecided", of_verdict=of_verdict, hooked=False), Config())
        assert told == Plan((), "nothing shows that its ranks wait")


def test_what_moves_is_told_near_the_jobs_own_time_out() -> None:
    told = plan(standstill("waiting"), Config())
    assert stages(told) == [(TELL.waiting_seconds, "warning")]
    assert "tell.waiting_seconds" in told.why
    told = plan(standstill("waiting", deadline_ns=STANDS + 1000 * SECOND), Config())
    assert stages(told) == [(1000 * TELL.waiting_share, "warning")]
    assert "of the job's own time-out" in told.why


@pytest.mark.parametrize("cause", ["process_stopped", "not_entered"])
def test_a_debugger_that_is_forgotten_is_told_near_the_jobs_own_time_out(cause: str) -> None:
    held = standstill(cause, deadline_ns=STANDS + 1000 * SECOND, debugged=(2,))
    told = plan(held, Config())
    assert {at for at, _ in stages(told)} == {1000 * TELL.waiting_share}
    assert "rank 2 is being debugged" in told.why
    loud = Config(tell=TellSection(terminals=True))
    assert plan(held, loud) == plan(held._replace(debugged=()), loud)


def test_a_stop_that_may_pass_is_told_when_it_has_lasted() -> None:
    """A live migration stops each rank for two seconds."""
    told = plan(standstill("process_stopped", known_ns=STANDS + SECOND), Config())
    assert stages(told) == [(TELL.stopped_seconds, "critical")]
    assert "tell.stopped_seconds" in told.why
    at_once = Config(tell=TellSection(stopped_seconds=0.0))
    assert stages(plan(standstill("process_stopped", known_ns=STANDS + SECOND), at_once)) == [(1, "critical")]


def test_a_phase_that_always_takes_long_surprises_nobody() -> None:
    told = plan(standstill("waiting", phase_past_seconds=2000.0), Config())
    assert stages(told) == [(3000, "warning")]
    assert "by what this phase took before" in told.why
    assert planned("waiting", phase_past_seconds=10.0) == [(TELL.waiting_seconds, "warning")]


def test_a_plan_says_what_is_reached_and_what_comes_next() -> None:
    both = Plan(((100, "warning"), (160, "critical")))
    assert [both.at(now) for now in (99, 100, 159, 160)] == ["none", "warning", "warning", "critical"]
    assert [both.next_ns(now) for now in (99, 100, 159, 160)] == [100, 160, 160, None]
    assert (Plan().at(5), Plan().next_ns(5)) == ("none", None)
