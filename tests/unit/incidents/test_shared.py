"""An incident that other nodes see too: one verdict, and one of them tells."""

from msgspec.structs import replace

from stallwatch.config import Config
from stallwatch.config_sections import FleetSection
from stallwatch.incidents.delivery_steps import due
from stallwatch.incidents.messages import Captured, FleetSaid, Judged
from stallwatch.model.incident import Incident, OutputTold, Together, Told
from stallwatch.model.verdict import Report
from tests.unit.incidents.stories import Story, facts, report, stall

ON_TWO_NODES = facts(world_size=8)
SHARING = Config(fleet=FleetSection(url="redis://h", key_file="/k"))


def story(config: Config = SHARING) -> Story:
    made = Story(config)
    made.at(0, stall(), jobs=[ON_TWO_NODES])
    return made


def current(made: Story) -> Incident:
    return made.lives.incidents()[0]


def say(made: Story, together: Together, said: Report | None = None) -> Incident:
    made.hear(FleetSaid(current(made).incident_id, together, said))
    return current(made)


def judge(made: Story, said: Report, look: int = 1) -> Incident:
    one = current(made)
    made.at(made.second + 1, stall("confirmed"))
    made.hear(Captured(one.incident_id, look, complete=True, done=True))
    made.hear(Judged(one.incident_id, look, said))
    return current(made)


def test_a_hang_of_a_job_with_ranks_elsewhere_is_told_by_nobody_until_the_nodes_have_agreed() -> None:
    one = judge(story(), report("collective_mismatch"))
    assert one.severity == "critical", "everybody shows how things stand"
    assert "agreed" in one.told_elsewhere
    assert due(one, (), "warning") is None


def test_a_job_that_is_all_here_and_a_node_that_judges_alone_tell_as_ever() -> None:
    whole = Story(SHARING)
    whole.at(0, stall())
    assert current(whole).together is None
    alone = story(Config())
    assert current(alone).together is None
    assert due(judge(alone, report("collective_mismatch")), (), "warning") == "told"


def test_who_speaks_tells_and_the_others_say_who_does() -> None:
    made = story()
    judge(made, report("collective_mismatch"))
    one = say(made, Together(False, "node3 tells of it", "train-1"))
    assert one.told_elsewhere == "node3 tells of it"
    assert due(one, (), "warning") is None
    one = say(made, Together(True, "", "train-1", 2))
    assert due(one, (), "warning") == "told"
    assert [event.what for event in one.events][-1].startswith("this node tells of it, as train-1")


def test_the_history_has_it_as_told_only_where_this_node_tells() -> None:
    made = story()
    judge(made, report("collective_mismatch"))
    one = say(made, Together(False, "node3 tells of it", "train-1"))
    assert not [event.what for event in one.events if event.what.startswith("told")]
    one = say(made, Together(True, "", "train-1", 2))
    assert one.events[-1].what == "this node tells of it, as train-1: told as critical"


def test_the_jobs_verdict_is_shown_and_this_nodes_part_does_not_replace_it() -> None:
    made = story()
    judge(made, report("undecided", ()))
    one = say(made, Together(False, "node3 tells of it", "train-1", 2), report("not_entered", (6,), "certain"))
    assert one.verdict is not None and (one.verdict.cause, one.verdict.culprits) == ("not_entered", (6,))
    one = judge(made, report("undecided", ()), look=made.lives.active[0].looks)
    assert one.verdict is not None and one.verdict.culprits == (6,)


def test_what_moved_by_the_jobs_verdict_has_its_patience_from_that_look() -> None:
    """As what this node sees to move by itself (test_looking): it was told at the first two looks that coincided."""
    made = story()
    of_two = Together(True, "", "train-1", 2)
    judge(made, report("undecided", ()))
    say(made, of_two, report("waiting", (6,)))
    made.at(100, stall("confirmed"))
    judge(made, report("undecided", ()), look=made.lives.active[0].looks)
    say(made, of_two, report("waiting", (6,)))
    made.at(125, stall("confirmed"))
    say(made, of_two, report("not_entered", (6,), ends_by_itself="compute"))
    made.at(218, stall("confirmed"))
    assert current(made).severity == "none"
    made.at(226, stall("confirmed"))
    assert current(made).severity != "none", "it stands since then"


def test_a_verdict_that_was_told_is_not_unknown_again() -> None:
    made = story()
    say(made, Together(True, "", "train-1", 2), report("collective_mismatch", (6,)))
    judge(made, report("undecided", ()))
    one = say(made, Together(True, "", "train-1", 1), report("undecided", ()))
    assert one.verdict is not None and one.verdict.cause == "collective_mismatch"


def test_the_end_may_be_told_by_another_than_the_beginning() -> None:
    made = story()
    judge(made, report("collective_mismatch"))
    say(made, Together(False, "node3 tells of it", "train-1", 2))
    for second in range(10, 16):
        made.at(second, jobs=[facts(world_size=8, moved=True)])
    one = current(made)
    assert one.state == "resolved"
    assert due(one, ("told",), "warning") is None
    one = say(made, Together(True, "", "train-1", 2))
    assert due(one, ("told",), "warning") == "resolved"


def test_where_the_ranks_of_this_node_are_gone_the_end_is_not_its_to_tell_before_the_nodes_have_agreed_anew() -> None:
    made = story()
    judge(made, report("collective_mismatch"))
    say(made, Together(True, "", "train-1", 2))
    made.at(10, jobs=[facts(world_size=8, alive=())])
    while (one := current(made)).state != "ended":
        made.at(made.second + 1, jobs=[facts(world_size=8, alive=())])
        assert made.second < 300
    assert "no ranks of the job are left here" in one.told_elsewhere
    assert due(one, ("told",), "warning") is None
    one = say(made, Together(True, "", "train-1", 2))
    assert due(one, ("told",), "warning") == "ended"


def test_what_stands_here_after_its_end_was_told_by_another_node_is_not_told_of_any_more() -> None:
    made = story()
    judge(made, report("collective_mismatch"))
    one = say(made, Together(True, "", "train-1", 2), report("collective_mismatch", (6,)))
    assert due(one, ("told",), "warning", "rank_exited 1") == "escalated"
    assert due(one, ("told", "ended"), "warning", "rank_exited 1") is None


def test_the_jobs_verdict_that_comes_when_the_job_is_over_here_is_shown_and_told_all_the_same() -> None:
    made = story()
    judge(made, report("undecided", ()))
    say(made, Together(False, "node3 tells of it", "train-1", 2))
    while current(made).state != "ended":
        made.at(made.second + 1, jobs=[facts(world_size=8, alive=())])
        assert made.second < 300
    one = say(made, Together(False, "node3 tells of it", "train-1", 2), report("rank_exited", (6,), "certain"))
    assert one.verdict is not None and (one.verdict.cause, one.verdict.culprits) == ("rank_exited", (6,))
    assert (one.state, one.report and one.report.incident_id) == ("ended", one.incident_id)
    assert one.events[-1].what.startswith("verdict of 2 nodes: rank_exited (certain)")


def at(mount: str) -> Report:
    found = report("collective_mismatch")
    return replace(found, verdicts=(replace(found.verdicts[0], waits_on=mount),))


def test_by_what_messages_are_put_together_stays_as_it_was_when_people_were_told() -> None:
    made = story()
    assert judge(made, at("nfs4 filer:/vol")).waits_on == "nfs4 filer:/vol"
    assert say(made, Together(True, "", "train-1", 2), at("nfs4 filer:/other")).waits_on == "nfs4 filer:/vol"
    told = Told({"slack": OutputTold(("told",))}, waits_on="nfs4 filer:/first")
    assert say(made, Together(True, "", "train-1", 2, told=told)).waits_on == "nfs4 filer:/first"


def _stands(made: Story, until: float) -> Incident:
    while made.second < until:
        made.at(made.second + 1, stall("confirmed"), jobs=[ON_TWO_NODES])
    return current(made)


TOLD = Told({"slack": OutputTold(("told",), "not_entered 6")}, "train-1", seconds=20.0)


def test_who_takes_over_goes_on_with_the_minute_of_who_told_first() -> None:
    """It may have heard of it long after: the meeting place was away, or it had another key. A new culprit begins the
    minute anew on every node."""
    made = story()
    judge(made, report("undecided", ()))
    heard = made.second
    say(made, Together(False, "node3 tells of it", "train-1", 2, told=TOLD), report("not_entered", (6,)))
    _stands(made, heard + 30)
    say(made, Together(True, "", "train-1", 1, told=TOLD), report("not_entered", (6,)))
    assert _stands(made, heard + 38).severity == "warning"
    assert _stands(made, heard + 42).severity == "critical"
    other = story()
    judge(other, report("undecided", ()))
    say(other, Together(True, "", "train-1", 2, told=TOLD), report("not_entered", (5,)))
    assert _stands(other, other.second + 58).severity == "warning"


def test_one_incident_is_as_urgent_on_each_node_as_people_were_told() -> None:
    made = story()
    judge(made, report("undecided", ()))
    escalated = Told({"slack": OutputTold(("told", "escalated"), "not_entered 6")}, "train-1")
    one = say(made, Together(False, "node3 tells of it", "train-1", 2, told=escalated), report("not_entered", (6,)))
    assert one.severity == "critical"
    assert one.events[-1].what == "another node has told it as critical"
    over = Told({"slack": OutputTold(("told", "escalated", "resolved"), "not_entered 6")}, "train-1")
    calm = story()
    judge(calm, report("undecided", ()))
    assert say(calm, Together(False, "node3 tells of it", "train-1", 2, told=over)).severity == "none"
