"""What the loop hands to the meeting place, and what it tells the engine of it."""

from collections.abc import Mapping, Sequence

import msgspec
import pytest

from stallwatch.config import Config
from stallwatch.config_sections import FleetSection
from stallwatch.detectors.node_pace import NodePace
from stallwatch.errors import UsageError
from stallwatch.fleet.company_seat import Companies
from stallwatch.fleet.node_word import NodeWord
from stallwatch.fleet.orders import Book, News
from stallwatch.fleet.pace_seat import JobPace
from stallwatch.fleet.pace_verdict import PaceVerdict
from stallwatch.fleet.place_settings import settings_of
from stallwatch.fleet.position import Local, Position
from stallwatch.fleet.roster import DaemonId, Namesake, RosterSeat, RosterSeen, Stranger, Unheard, doubled
from stallwatch.incidents.incident_names import shared_name
from stallwatch.incidents.life import IncidentLife, IncidentTable
from stallwatch.incidents.messages import FleetSaid, Judged
from stallwatch.loop.shared_incidents import Fleet
from stallwatch.model.incident import Incident, OutputTold, Step, Together, Told
from stallwatch.model.snapshot import JobKey
from stallwatch.model.verdict import CulpritProcess, Frame, Report
from tests.builders.clock import FakeClock
from tests.chaos.fleet_story import scene
from tests.unit.fleet.test_pace_verdict import pace
from tests.unit.incidents.stories import SECOND, START, facts, report, stall
from tests.unit.outputs.reports import incident

SHARED = Together(why="not agreed")
SUMMARY = scene(2, 3, "sleeps")[0][1]


class FakeLink:
    """A meeting place that says what the test says."""

    def __init__(self) -> None:
        self.asked: list[Sequence[Local]] = []
        self.position = Position(ordinal=4, why="node1 tells of it")
        self.problem = ""
        self.busy = False
        self.closed = False
        self.book = Book("node0")
        self.companies = Companies("node0")
        self.roster = RosterSeat("node0")
        self.paces: Sequence[JobPace] = ()
        self.slow_ranks: dict[str, PaceVerdict] = {}
        self.heard: list[News] = []

    def news(self) -> list[News]:
        heard, self.heard = self.heard, []
        return heard

    def slow(self, now_ns: int) -> Mapping[str, PaceVerdict]:
        return self.slow_ranks

    def step(self, now_ns: int, locals_: Sequence[Local], paces: Sequence[JobPace] = ()) -> Mapping[str, Position]:
        self.paces = paces
        self.asked.append(locals_)
        return {local.incident_id: self.position for local in locals_}

    def close(self) -> None:
        self.closed = True


def shared(**changes: object) -> Incident:
    return msgspec.structs.replace(incident(together=SHARED, report=None), **changes)


def lives(*incidents: Incident) -> IncidentTable:
    return IncidentTable(active=tuple(IncidentLife(one, "hang") for one in incidents))


def judged(one: Incident, **fields: object) -> Judged:
    return Judged(one.incident_id, 1, report("process_stopped", (1,)), summary=SUMMARY)


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def fleet(link: FakeLink) -> Fleet:
    told = Told({"slack": OutputTold(("told",), "x")})
    return Fleet(link, FakeClock(), "node0", lambda incident_id: told)


def said(fleet: Fleet, one: Incident, *events: Judged, at: float = 0) -> FleetSaid | None:
    here = facts(one.job, world_size=8, ranks=(0, 1, 2, 3))
    found = fleet.step(lives(one), events, (here,), START + int(at * SECOND))
    assert len(found) <= 1
    event = found[0] if found else None
    assert event is None or isinstance(event, FleetSaid)
    return event


def test_an_incident_that_this_node_sees_whole_is_no_business_of_others(fleet: Fleet, link: FakeLink) -> None:
    assert said(fleet, incident()) is None
    assert link.asked == [()]


def test_what_was_judged_here_goes_out_signed_for_with_the_ranks_that_run_here(fleet: Fleet, link: FakeLink) -> None:
    said(fleet, shared(), judged(shared()))
    (local,) = link.asked[-1]
    word = msgspec.msgpack.decode(local.summary, type=NodeWord)
    assert (word.node, word.ranks) == ("node0", (0, 1, 2, 3))
    assert (local.judged, local.world_size) == (1, 8)
    assert local.told.outputs["slack"].steps == ("told",)


@pytest.mark.parametrize(
    ("said_here", "proven"),
    [
        (report("process_stopped", (1,)), True),
        (report("process_stopped", (7,)), False),
        (report("not_entered", (1,), "likely"), False),
        (report("not_entered", (1,), "certain"), True),
        (report("undecided", ()), False),
    ],
)
def test_a_culprit_that_runs_here_and_is_seen_here_is_a_proof(
    fleet: Fleet, link: FakeLink, said_here: Report, proven: bool
) -> None:
    one = shared()
    said(fleet, one, Judged(one.incident_id, 1, said_here, summary=SUMMARY))
    assert link.asked[-1][0].proven is proven
    assert link.asked[-1][0].conclusive is (proven and said_here.verdicts[0].cause == "process_stopped")


def test_where_it_stands_is_told_once(fleet: Fleet) -> None:
    first = said(fleet, shared(), judged(shared()))
    assert first is not None
    assert (first.together.speaks, first.together.why) == (False, "node1 tells of it")
    assert first.together.incident_id.endswith("-4")
    assert said(fleet, shared()) is None


def test_the_jobs_verdict_comes_with_it(fleet: Fleet, link: FakeLink) -> None:
    said(fleet, shared(), judged(shared()))
    link.position = Position(4, True, "", report("not_entered", (6,), "certain"), 2)
    event = said(fleet, shared())
    assert event is not None and event.report is not None
    assert (event.report.verdicts[0].culprits, event.together.nodes) == ((6,), 2)


def test_while_the_meeting_place_is_away_this_nodes_own_verdict_says_that_it_is_alone(
    fleet: Fleet, link: FakeLink
) -> None:
    link.position = Position(0, True, "", None, 0, None, "the meeting place has not answered for 12 s: refused")
    event = said(fleet, shared(), judged(shared()))
    assert event is not None and event.report is not None
    assert "has not answered for 12 s" in event.report.verdicts[0].missing[0]
    assert not event.report.evidence_complete
    assert event.together.nodes == 0
    link.position = msgspec.structs.replace(link.position, away="the meeting place has not answered for 13 s: refused")
    assert said(fleet, shared(), at=1) is None, "that time passes is no news"


def test_a_daemon_that_starts_again_says_once_that_it_is_alone(fleet: Fleet, link: FakeLink) -> None:
    link.position = Position(0, True, "", None, 0, None, "the meeting place has not answered for 12 s: refused")
    first = said(fleet, shared(), judged(shared()))
    assert first is not None
    link.position = msgspec.structs.replace(link.position, away="the meeting place has not answered for 40 s: refused")
    again = said(Fleet(link, FakeClock(), "node0", lambda incident_id: Told()), shared(report=first.report))
    assert again is not None and again.report is not None
    verdict = again.report.verdicts[0]
    assert verdict.summary.count("could not be heard") == 1
    assert [one.count("40 s") for one in verdict.missing if "has not answered" in one] == [1]


def test_a_summary_that_cannot_be_read_costs_no_verdict(fleet: Fleet, link: FakeLink) -> None:
    one = shared()
    broken = Judged(one.incident_id, 1, report("process_stopped", (1,)), summary=b"\xff")
    assert said(fleet, one, broken) is not None
    assert link.asked[-1][0].summary == b""


def test_after_its_end_it_is_shared_until_the_last_word_is_said_and_no_longer(fleet: Fleet, link: FakeLink) -> None:
    said(fleet, shared(), judged(shared()))
    over = shared(state="resolved")
    past = IncidentTable(past=(over,))
    fleet.step(past, (), (), START + SECOND)
    assert link.asked[-1][0].over
    fleet.step(past, (), (), START + 200 * SECOND)
    assert link.asked[-1] == ()


def test_how_the_meeting_place_does_is_shown_and_makes_no_node_unready(fleet: Fleet, link: FakeLink) -> None:
    assert fleet.status().up
    link.problem = "redis://h: refused. Is it up?"
    assert (fleet.status().up, fleet.status().required, fleet.status().reason) == (False, False, link.problem)


def test_a_node_of_another_key_is_a_problem_before_anything_stands_and_which_of_its_jobs_is_known(
    fleet: Fleet, link: FakeLink
) -> None:
    assert [fleet.strangers] == [None]
    link.roster.seen = RosterSeen("aa", ("node-c",))
    assert (fleet.strangers, fleet.status().up, fleet.status().reason) == (0, True, "well: , with node-c")
    name = shared_name(shared().job)
    link.roster.seen = RosterSeen("aa", (), (Stranger("node1", "bb", ((name, 4),)),))
    said(fleet, shared(), judged(shared()))
    assert link.roster.jobs == ((name, 0),)
    apart = link.asked[-1][0].apart
    assert (fleet.strangers, apart is not None and apart.nodes) == (1, ("node1",))


def test_a_verdict_that_lacks_nodes_of_another_key_says_so(fleet: Fleet, link: FakeLink) -> None:
    why = "node1 signs with another key than this node (aa), and cannot be believed"
    link.position = Position(4, speaks=True, why="", apart=Unheard(("node1",), why, lower=False))
    event = said(fleet, shared(), judged(shared()))
    assert event is not None and event.report is not None
    verdict = event.report.verdicts[0]
    assert verdict.missing[0] == f"what the job's other nodes see: {why}"
    assert verdict.summary.endswith("node1 could not be heard.")


def test_of_a_job_on_two_machines_of_one_name_each_says_what_it_sees_alone_and_what_to_do(
    fleet: Fleet, link: FakeLink
) -> None:
    twin = Namesake(DaemonId("2", "m", "host-2"), ((shared_name(shared().job), 4),))
    link.roster.seen = RosterSeen("aa", namesake=twin)
    link.position = Position(speaks=True, why="", away=doubled("node0", twin.daemon))
    event = said(fleet, shared(), judged(shared()))
    assert "calls itself node0 too (host host-2" in link.asked[-1][0].alone
    assert event is not None and event.report is not None
    assert "another machine calls itself node0 too" in event.report.verdicts[0].missing[0]
    link.roster.seen = RosterSeen("aa", namesake=msgspec.structs.replace(twin, jobs=()))
    said(fleet, shared(), judged(shared()))
    assert link.asked[-1][0].alone == "", "a job that the other machine has no rank of"


def test_the_jobs_verdict_has_the_line_of_code_that_only_this_node_may_know(fleet: Fleet, link: FakeLink) -> None:
    """It does not travel (fleet.detail); of a culprit that runs here people are shown it."""
    own = report("not_entered", (1,))
    place = CulpritProcess(1, "node0", 77, frame=Frame("/srv/job/data.py", 7, "prepare", "lock.acquire()"))
    mine = msgspec.structs.replace(own.verdicts[0], culprit_processes=(place,))
    cut = msgspec.structs.replace(place, frame=Frame("…/srv/job/data.py", 7, "prepare"))
    of_all = msgspec.structs.replace(mine, culprit_processes=(cut,))
    link.position = Position(4, report=msgspec.structs.replace(own, verdicts=(of_all,)), nodes=2)
    here = msgspec.structs.replace(own, verdicts=(mine,))
    event = said(fleet, shared(), Judged(shared().incident_id, 1, here, summary=SUMMARY))
    assert event is not None and event.report is not None
    (shown,) = event.report.verdicts[0].culprit_processes
    assert shown.frame is not None and shown.frame.source == "lock.acquire()"


@pytest.mark.parametrize(("steps", "asked"), [(("told", "ended"), False), (("told",), True)])
def test_what_was_over_before_this_daemon_began_is_shared_only_while_its_end_is_to_be_told(
    link: FakeLink, steps: tuple[Step, ...], asked: bool
) -> None:
    """As seen live: of a job that was started anew, the incident before heard the verdict of the next."""
    told = Told({"slack": OutputTold(steps, "x")})
    fleet = Fleet(link, FakeClock(), "node0", lambda incident_id: told)
    over = shared(state="ended", severity="warning", together=Together(incident_id="train-0a1b2c3d-7"))
    said(fleet, over)
    assert [one.ordinal for one in link.asked[-1]] == [7] * asked


def test_without_an_address_there_is_no_meeting_place() -> None:
    assert settings_of(Config().fleet) is None


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (FleetSection(url="http://h", key_file="/k"), "no meeting place"),
        (FleetSection(url="file:relative", key_file="/k"), "no meeting place"),
        (FleetSection(url="redis://u:secret@h", key_file="/k"), "holds a user or a password"),
        (FleetSection(url="redis://h"), "key_file is empty"),
        (FleetSection(url="redis:/h:6379", key_file="/k"), "names no host"),
        (FleetSection(url="rediss:h:6379", key_file="/k"), "names no host"),
        (FleetSection(url="redis://:6379", key_file="/k"), "names no host"),
    ],
)
def test_a_setting_that_cannot_be_says_what_to_write(section: FleetSection, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        settings_of(section)
    assert error.value.help
    assert "secret" not in str(error.value)


def test_what_all_nodes_found_of_a_rank_here_is_a_finding_of_this_node(fleet: Fleet, link: FakeLink) -> None:
    one = facts(world_size=8, ranks=(0, 1, 2, 3))
    link.slow_ranks = {shared_name(one.job): PaceVerdict((2, 6), ("node0", "node1"), "confirmed", "ranks 2, 6 hold")}
    (finding,) = fleet.moves(dict, (one,), (), START)
    assert (finding.family, finding.ranks, finding.stage) == ("slow", (2,), "confirmed")
    own = stall()
    slow_here = msgspec.structs.replace(finding, ranks=(1,))
    assert len(fleet.moves(dict, (one,), (own,), START)) == 1
    assert fleet.moves(dict, (one,), (slow_here,), START) == [], "what a node sees by itself it sees better"
    elsewhere = facts(world_size=8, ranks=(4, 5))
    assert fleet.moves(dict, (elsewhere,), (), START) == []
    whole = facts(world_size=4)
    assert fleet.moves(dict, (whole,), (), START) == []


def test_this_nodes_pace_is_reckoned_now_and_then_and_goes_out(fleet: Fleet, link: FakeLink) -> None:
    one, reckoned = facts(world_size=8, ranks=(0, 1, 2, 3)), []

    def paces() -> dict[JobKey, NodePace]:
        reckoned.append(1)
        return {one.job: pace(0, 1, 2, 3)}

    for second in range(10):
        fleet.moves(paces, (one,), (), START + second * SECOND)
        fleet.step(IncidentTable(), (), (one,), START + second * SECOND)
    assert len(reckoned) == 2
    (said,) = link.paces
    assert (said.job, said.world_size) == (shared_name(one.job), 8)
