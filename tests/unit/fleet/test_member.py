"""Which of a job's nodes tells of an incident, whatever befalls them: one message, the right culprit."""

import random

import pytest

from tests.chaos import fleet_daemon
from tests.chaos.fleet import Count, FleetRun, note, play
from tests.chaos.fleet_daemon import Sent
from tests.chaos.fleet_story import UNDECIDED_SECONDS, Fault, Story, host

FOR_EVER = (0.0, 1e9)


def sent_in(story: Story) -> list[Sent]:
    return FleetRun(story, random.Random(1)).run()


def told(sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if one.step == "told"]


def named(sent: list[Sent]) -> list[tuple[int, ...]]:
    return [one.culprits for one in sent]


def test_one_of_four_nodes_tells_of_the_culprit_on_another_and_of_the_end() -> None:
    sent = sent_in(Story(culprit=5))
    assert [one.step for one in sent] == ["told", "escalated", "resolved"]
    assert (sent[0].cause, sent[0].culprits) == ("not_entered", (5,))
    assert len({one.node for one in sent}) == 1
    assert sent[0].at < 25


def test_the_node_with_a_proof_speaks_at_once() -> None:
    sent = sent_in(Story(culprit=5, fault="stopped"))
    assert told(sent)[0].node == 2
    assert told(sent)[0].at < 12


def test_a_job_that_is_over_on_the_node_of_the_first_death_before_nodes_agree_is_told_all_the_same() -> None:
    sent = sent_in(Story(nodes=2, per_node=1, culprit=1, fault="killed"))
    assert [(one.step, one.cause, one.culprits) for one in sent][:1] == [("told", "rank_exited", (1,))]
    assert sent[0].at < 25
    assert [one.step for one in sent].count("told") == 1


def test_of_the_end_a_node_tells_that_still_has_ranks_and_not_that_of_the_death() -> None:
    story = Story(nodes=4, per_node=1, culprit=1, fault="killed", sees_at={2: 9.0}, looks_take={2: 6.0})
    sent = sent_in(story)  # node 2 comes to join when node 1 has no ranks any more
    assert [one.step for one in sent] == ["told", "ended"]
    assert (sent[0].node, sent[0].at < 25) == (1, True)
    assert (sent[1].node != 1, sent[1].at > story.resolved_at) == (True, True)
    assert len({one.key for one in sent}) == 1


def test_where_no_other_takes_over_that_of_the_death_tells_of_the_end_and_who_comes_later_repeats_nothing() -> None:
    story = Story(nodes=2, per_node=1, culprit=1, fault="killed", sees_at={0: 70.0})
    sent = sent_in(story)
    assert [(one.step, one.node) for one in sent] == [("told", 1), ("ended", 1)]
    assert sent[1].at < 70.0


@pytest.mark.parametrize("over_at", [30.0, 45.0, 60.0, 75.0, 90.0])
def test_the_end_is_told_once_however_long_after_the_death_it_comes(over_at: float) -> None:
    """The node of the death is over for a minute when it claims, and was gone before what it told was noted."""
    sent = sent_in(Story(nodes=4, per_node=1, culprit=1, fault="killed", resolved_at=over_at))
    assert [one.step for one in sent] == ["told", "ended"]


def test_a_job_that_is_over_on_all_nodes_at_once_is_told_and_so_is_its_end() -> None:
    story = Story(nodes=4, per_node=1, culprit=1, fault="killed", resolved_at=6.0)
    sent = sent_in(story)
    assert [one.step for one in sent] == ["told", "ended"]
    assert (sent[0].cause, sent[0].culprits) == ("rank_exited", (1,))


def test_a_leader_that_dies_before_it_has_told_is_replaced() -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    sent = sent_in(Story(culprit=5, dies={first.node: first.at - 2}))
    assert named(told(sent)) == [(5,)]
    assert told(sent)[0].node != first.node


def test_a_leader_that_dies_after_it_has_told_is_not_repeated_and_another_tells_the_end() -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    sent = sent_in(Story(culprit=5, dies={first.node: first.at + 10}))
    assert len(told(sent)) == 1
    assert sent[-1].step == "resolved"
    assert sent[-1].node != first.node


@pytest.mark.parametrize("dies", [False, True])
def test_who_takes_over_a_telling_does_not_begin_its_minute_to_critical_anew(dies: bool) -> None:
    """Node 2, with a key of its own, tells alone; when it has the others' one of these tells on, 16 s later."""
    story = Story(culprit=5, keys={2: 1}, mended_at=25.0, resolved_at=170.0, dies={2: 45.0} if dies else {})
    sent = sent_in(story)
    first, urgent = sent[0], next(one for one in sent if one.step == "escalated")
    assert (first.node, urgent.node) == (2, 0)
    assert urgent.at < first.at + 60


@pytest.mark.parametrize("before", [0.5, 2.0, 5.0])
def test_a_leader_that_stands_between_its_claim_and_its_message_says_nothing_when_it_goes_on(before: float) -> None:
    """It has not heard from the meeting place for a minute, and has not asked: another has told meanwhile."""
    first = told(sent_in(Story(culprit=5)))[0]
    sent = sent_in(Story(culprit=5, stands={first.node: (first.at - before, first.at + 60)}))
    assert named(told(sent)) == [(5,)]
    assert told(sent)[0].node != first.node
    assert [one.step for one in sent if one.step not in ("told", "escalated")] == ["resolved"]


def test_between_the_send_and_the_commit_a_death_costs_a_second_message_under_the_same_key() -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    sent = told(sent_in(Story(culprit=5, dies_having_sent={first.node: "told"})))
    assert len(sent) == 2
    assert len({one.key for one in sent}) == 1


def test_a_node_that_cannot_judge_what_others_say_lets_another_tell() -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    sent = told(sent_in(Story(culprit=5, unable=frozenset({first.node}))))
    assert named(sent) == [(5,)]
    assert sent[0].node != first.node and sent[0].at < first.at + 20


@pytest.mark.parametrize("fault", ["stands", "killed"])
def test_where_no_node_can_judge_what_others_say_one_tells_what_it_sees_itself(fault: Fault) -> None:
    sent = told(sent_in(Story(culprit=5, fault=fault, unable=frozenset(range(4)))))
    assert len(sent) == 1 and set(sent[0].culprits) <= {5}
    assert "could not be" in sent[0].text


def test_what_a_daemon_left_unsent_is_not_sent_after_its_restart_if_another_node_has_told_it_meanwhile() -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    sent = told(sent_in(Story(culprit=5, dies={first.node: first.queued_at + 0.5}, back_after={first.node: 25.0})))
    assert named(sent) == [(5,)]
    assert sent[0].node != first.node


@pytest.mark.parametrize("back", [3.0, 12.0])
def test_who_dies_between_the_send_and_the_commit_and_is_back_soon_makes_no_third_message(back: float) -> None:
    story = Story(2, 2, 3, "sleeps", dies_having_sent={0: "told"}, back_after={0: back}, resolved_at=200.0)
    sent = sent_in(story)
    assert [(one.node, one.step) for one in sent] == [(0, "told"), (1, "told"), (1, "resolved")]
    assert len({one.key for one in sent}) == 1


@pytest.mark.parametrize("back", [3.0, 20.0])
def test_who_dies_so_and_is_back_when_the_job_moves_again_has_people_told_of_its_end(back: float) -> None:
    story = Story(2, 2, 3, "sleeps", dies_having_sent={0: "told"}, back_after={0: back}, resolved_at=144.5)
    assert [one.step for one in sent_in(story)] == ["told", "told", "resolved"]


def test_what_a_daemon_left_unsent_is_sent_after_its_restart_if_nobody_else_can() -> None:
    first = told(sent_in(Story(nodes=2, culprit=2)))[0]
    story = Story(nodes=2, culprit=2, dies={first.node: first.queued_at + 0.5}, back_after={first.node: 25.0})
    story.dies[1 - first.node] = 3.0
    sent = told(sent_in(story))
    assert (sent[0].node, len(sent)) == (first.node, 1)
    assert sent[0].at < first.queued_at + 60


# The meeting place does not answer.


def test_while_it_is_away_the_node_that_finds_its_own_rank_at_fault_tells_soon_and_says_that_it_is_alone() -> None:
    sent = told(sent_in(Story(culprit=5, away=FOR_EVER)))
    assert (sent[0].node, sent[0].culprits, sent[0].confidence) == (2, (5,), "likely")
    assert sent[0].at < 25
    assert "other nodes could not be heard" in sent[0].text
    assert len({one.key for one in sent}) == 1


def test_where_no_node_finds_a_rank_of_its_own_at_fault_rank_0s_tells_in_the_end_and_accuses_nobody() -> None:
    sent = told(sent_in(Story(nodes=4, per_node=1, culprit=2, away=FOR_EVER)))
    assert [(one.node, one.culprits) for one in sent] == [(0, ())]
    assert UNDECIDED_SECONDS <= sent[0].at < UNDECIDED_SECONDS + 10
    assert "on another node, or unknown" in sent[0].text


def test_while_it_is_away_a_node_with_a_proof_speaks() -> None:
    sent = told(sent_in(Story(culprit=5, fault="killed", away=FOR_EVER)))
    assert (sent[0].node, sent[0].culprits) == (2, (5,))


def test_when_it_comes_back_within_its_patience_one_speaks() -> None:
    sent = told(sent_in(Story(culprit=5, away=(0.0, 8.0))))
    assert named(sent) == [(5,)]


@pytest.mark.parametrize("slow", [(1.0, 2.0), (3.0, 4.0)])
@pytest.mark.parametrize("fault", ["stands", "killed", "all_wait"])
def test_one_that_answers_each_command_after_seconds_is_not_away(fault: Fault, slow: tuple[float, float]) -> None:
    sent = told(sent_in(Story(nodes=8, per_node=1, culprit=5, fault=fault, slow=slow)))
    assert named(sent) == [() if fault == "all_wait" else (5,)]


def test_one_that_answers_later_than_claims_are_in_force_keeps_nobody_from_telling() -> None:
    assert told(sent_in(Story(culprit=5, slow=(4.6, 4.7))))


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize("back", [30.0, 100.0])
def test_what_was_told_while_it_was_away_is_not_told_again_when_it_comes_back(back: float, wiped: bool) -> None:
    sent = told(sent_in(Story(culprit=5, away=(0.0, back), wiped=wiped, past=3)))
    assert (sent[0].node, sent[0].culprits) == (2, (5,))
    assert len(sent) == 1 if back < UNDECIDED_SECONDS else len(sent) <= 2
    assert {one.key for one in sent} == {sent[0].key}


@pytest.mark.parametrize("wiped", [False, True])
def test_a_place_that_goes_between_the_claim_and_the_message_costs_no_second_message(wiped: bool) -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    sent = told(sent_in(Story(culprit=5, away=(first.queued_at - 3, first.at + 25), wiped=wiped)))
    assert named(sent) == [(5,)]


def test_a_place_that_comes_back_with_nothing_is_given_what_nodes_had_put() -> None:
    sent = told(sent_in(Story(culprit=5, per_node=1, nodes=6, away=(9.5, 12.0), wiped=True)))
    assert named(sent) == [(5,)]
    assert sent[0].at < 40


def test_what_was_told_before_it_went_is_not_told_again_though_it_comes_back_with_nothing() -> None:
    first = told(sent_in(Story(culprit=5)))[0]
    away = (first.at + 5, first.at + 30)
    late = {0: first.at + 40}  # a node that joins what the place knows then
    sent = told(sent_in(Story(culprit=5, away=away, wiped=True, sees_at=late, dies={first.node: first.at + 60})))
    assert len(sent) == 1


def test_the_node_of_rank_0_may_be_cut_off() -> None:
    sent = told(sent_in(Story(culprit=5, cut={0: FOR_EVER})))
    assert named([one for one in sent if one.node != 0]) == [(5,)]


def test_a_node_that_judges_later_updates_the_verdict() -> None:
    story = Story(culprit=5, sees_at={2: 30.0})
    sent = sent_in(story)
    assert not any(set(one.culprits) & story.innocent for one in sent)
    assert (5,) in named(sent)


def test_a_node_from_which_nothing_comes_any_more_is_told_long_before_the_patience_with_the_undecided() -> None:
    story = Story(nodes=3, per_node=2, culprit=5, fault="all_wait", cut={2: FOR_EVER}, resolved_at=160.0)
    sent = told(sent_in(story))
    assert sent[0].at < UNDECIDED_SECONDS - 10
    assert sent[0].culprits == ()
    assert "Nothing comes any more from node2" in sent[0].text


def test_an_incident_that_ends_before_anybody_was_told_is_told_by_nobody() -> None:
    assert sent_in(Story(culprit=5, sees_at=dict.fromkeys(range(4), 5.0), resolved_at=6.0)) == []


@pytest.mark.parametrize("knows", [set(), {0}, {2}, set(range(4))])
@pytest.mark.parametrize("fault", ["stands", "stopped", "killed", "all_wait"])
def test_the_next_job_at_the_same_address_is_told_as_any_other_and_nobody_is_on_it(
    fault: Fault, knows: set[int]
) -> None:
    """Of the job before people were told, anna was on it, and it was killed as it stood; some nodes remember it."""
    story = Story(culprit=5, fault=fault, relaunched=frozenset(knows), resolved_at=170.0)
    fresh = told(sent_in(Story(culprit=5, fault=fault, resolved_at=170.0)))
    sent = sent_in(story)
    assert [(one.culprits, one.key[-2:]) for one in told(sent)] == [(fresh[0].culprits, "-2")]
    assert told(sent)[0].at <= fresh[0].at + 1
    assert "acknowledged" not in [one.step for one in sent]


@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("fault", ["stands", "sleeps", "stopped", "killed", "mismatch", "all_wait"])
def test_a_node_that_signs_with_another_key_keeps_nobody_from_telling(fault: Fault, odd: int) -> None:
    story = Story(culprit=5, fault=fault, keys={odd: 1}, resolved_at=170.0)
    sent = told(sent_in(story))
    assert 1 <= len(sent) <= 2
    assert not any(set(one.culprits) & story.innocent for one in sent)
    if fault == "all_wait":
        assert sent[0].at < UNDECIDED_SECONDS + 10
    elif fault == "sleeps":  # which has its time
        assert (5,) in named(sent)
    elif (fault, odd) == ("mismatch", 2):  # of two alone nothing tells which of them is right
        assert sent[0].at < 30
    else:
        assert sent[0].culprits == (5,)
        assert sent[0].at <= told(sent_in(Story(culprit=5, fault=fault, resolved_at=170.0)))[0].at + 10
    assert any("could not be heard" in one.text for one in sent)


@pytest.mark.parametrize("twins", [(0, 2), (2, 3)])
@pytest.mark.parametrize("fault", ["stands", "stopped", "all_wait"])
def test_a_job_on_two_machines_of_one_name_is_told_and_nobody_innocent_named(
    fault: Fault, twins: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_daemon, "host", lambda node: host(twins[0] if node in twins else node))
    story = Story(culprit=5, fault=fault, resolved_at=170.0)
    sent = told(sent_in(story))
    assert 1 <= len(sent) <= story.nodes
    assert not any(set(one.culprits) & story.innocent for one in sent)
    assert fault == "all_wait" or (5,) in named(sent)


@pytest.mark.parametrize("fault", ["stands", "stopped", "killed", "all_wait"])
def test_where_each_node_has_a_key_of_its_own_the_culprits_tells_and_that_of_the_lowest_ranks_at_most(
    fault: Fault,
) -> None:
    story = Story(nodes=6, culprit=7, fault=fault, keys={node: node for node in range(6)}, resolved_at=170.0)
    sent = told(sent_in(story))
    assert {one.node for one in sent} <= {0, 3}
    assert (7,) in named(sent) or fault == "all_wait"
    assert all("could not be heard" in one.text for one in sent)
    alone = sent_in(Story(6, culprit=7, fault=fault, keys=story.keys, dies={0: 1.0, 3: 1.0}, resolved_at=250.0))
    assert told(alone), "the next of the lowest ranks"


def test_nor_is_the_death_of_a_rank_that_is_alone_on_its_node_one_of_the_job_before() -> None:
    story = Story(nodes=4, per_node=1, culprit=1, fault="killed", relaunched=frozenset({0, 2}))
    assert [(one.culprits, one.key[-2:]) for one in told(sent_in(story))] == [((1,), "-2")]


@pytest.mark.parametrize("mended_at", [25.0, 33.0, 39.5, 47.0])
@pytest.mark.parametrize("odd", range(4))
@pytest.mark.parametrize("fault", ["stands", "stopped", "killed", "all_wait"])
def test_a_node_that_is_given_the_others_key_while_the_job_stands_says_nothing_again(
    fault: Fault, odd: int, mended_at: float
) -> None:
    story = Story(culprit=5, fault=fault, keys={odd: 1}, mended_at=mended_at, resolved_at=170.0)
    sent = told(sent_in(story))
    assert len(sent) == 1
    assert named(sent) == [() if fault == "all_wait" else (5,)]


def test_nodes_of_which_some_remember_an_incident_before_meet_in_a_place_that_has_lost_all() -> None:
    """One that remembers none comes first, and opens the one that for others is over."""
    story = Story(culprit=5, sees_at={0: 5.0, 1: 20.0, 2: 20.0, 3: 20.0}, relaunched=frozenset({1, 2, 3}))
    story.away, story.wiped = (0.0, 1.0), True
    sent = told(sent_in(story))
    assert [(one.culprits, one.key[-2:]) for one in sent] == [((5,), "-2")]


def test_nor_is_anybody_on_it_where_the_place_goes_and_a_node_calls_it_as_that_of_the_job_before() -> None:
    sent = sent_in(Story(culprit=5, away=(3.0, 1e9), relaunched=frozenset(), resolved_at=170.0))
    assert sent and "acknowledged" not in [one.step for one in sent]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_befalls_a_fleet_somebody_tells_and_nobody_innocent_is_named(seed: int) -> None:
    count = Count(seed)
    note(count, seed, play(seed))
    assert count.good, count.bad


def test_a_second_message_without_a_reason_and_an_innocent_are_no_good_result() -> None:
    run = FleetRun(Story(culprit=5), random.Random(1))
    sent = run.run()
    again = Count(0)
    run.sent = [*sent, Sent(**{**vars(told(sent)[0]), "node": 1, "at": 90.0, "queued_at": 89.0})]
    note(again, 0, run)
    assert not again.good
    wrong = Count(0)
    run.sent = [Sent(**{**vars(told(sent)[0]), "culprits": (4,)})]
    note(wrong, 0, run)
    assert not wrong.good
    none = Count(0)
    run.sent = []
    note(none, 0, run)
    assert not none.good
