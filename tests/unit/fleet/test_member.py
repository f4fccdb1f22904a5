"""Which of a job's nodes tells of an incident, whatever befalls them: one message, the right culprit."""

import random

import pytest

from tests.unit.fleet.nodes import Fleet, Sent, Story, innocents, random_story


def play(story: Story) -> list[Sent]:
    return Fleet(story, random.Random(1)).run()


def told(sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if one.step == "told"]


def test_one_of_four_nodes_tells_of_the_culprit_on_another_and_of_the_end() -> None:
    sent = play(Story(culprit=5))
    assert [one.step for one in sent] == ["told", "resolved"]
    assert (sent[0].cause, sent[0].culprits) == ("not_entered", (5,))
    assert len({one.node for one in sent}) == 1
    assert sent[0].at < 12


def test_the_node_with_a_proof_speaks_at_once() -> None:
    sent = play(Story(culprit=5, fault="stopped"))
    assert told(sent)[0].node == 2
    assert told(sent)[0].at < 6


def test_a_leader_that_dies_before_it_has_told_is_replaced() -> None:
    first = told(play(Story(culprit=5)))[0]
    sent = play(Story(culprit=5, dies={first.node: first.at - 1}))
    assert [one.culprits for one in told(sent)] == [(5,)]
    assert told(sent)[0].node != first.node


def test_a_leader_that_dies_after_it_has_told_is_not_repeated_and_another_tells_the_end() -> None:
    first = told(play(Story(culprit=5)))[0]
    sent = play(Story(culprit=5, dies={first.node: first.at + 10}))
    assert [one.step for one in sent] == ["told", "resolved"]
    assert sent[1].node != first.node


def test_between_the_send_and_the_commit_a_death_costs_a_second_message_under_the_same_key() -> None:
    first = told(play(Story(culprit=5)))[0]
    sent = told(play(Story(culprit=5, dies_having_sent={first.node: "told"})))
    assert len(sent) == 2
    assert len({one.key for one in sent}) == 1


def test_while_the_meeting_place_is_away_the_node_of_rank_0_speaks_where_nobody_has_a_proof() -> None:
    sent = told(play(Story(culprit=5, away=(0.0, 1000.0))))
    assert [one.node for one in sent] == [0]
    assert not innocents(Story(culprit=5), sent)


def test_while_it_is_away_a_node_with_a_proof_speaks() -> None:
    sent = told(play(Story(culprit=5, fault="killed", away=(0.0, 1000.0))))
    assert 2 in {one.node for one in sent}
    assert [one.culprits for one in sent if one.node == 2] == [(5,)]


def test_when_it_comes_back_within_its_patience_one_speaks() -> None:
    sent = told(play(Story(culprit=5, away=(0.0, 8.0))))
    assert [one.culprits for one in sent] == [(5,)]


def test_the_node_of_rank_0_may_be_cut_off() -> None:
    sent = told(play(Story(culprit=5, cut={0: (0.0, 1000.0)})))
    assert [one.culprits for one in sent if one.node != 0] == [(5,)]


def test_a_node_that_judges_later_updates_the_verdict() -> None:
    sent = play(Story(culprit=5, judged_at={2: 20.0}))
    assert not innocents(Story(culprit=5), sent)
    assert sent[-2].culprits == (5,) or told(sent)[0].at > 20


def test_an_incident_that_ends_before_anybody_was_told_is_told_by_nobody() -> None:
    assert play(Story(culprit=5, judged_at=dict.fromkeys(range(4), 10.0), resolved_at=5.0)) == []


@pytest.mark.parametrize("seed", range(20))
def test_whatever_befalls_a_fleet_somebody_tells_and_nobody_innocent_is_named(seed: int) -> None:
    rng = random.Random(seed)
    story = random_story(rng)
    sent = Fleet(story, rng).run()
    assert told(sent), story
    assert not innocents(story, sent), story
    assert len({one.key for one in told(sent)}) == 1 or story.has_partition
