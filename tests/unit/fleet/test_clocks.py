"""Nodes whose clocks are apart come to the verdict to which they come with one clock."""

from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from stallwatch.fleet.clocks import aligned
from stallwatch.fleet.exchange import Wish, _dated, exchange
from stallwatch.fleet.judge_child import JudgeQuestion, answer_to
from stallwatch.fleet.node_word import Believed, NodeWord, encode_word
from stallwatch.fleet.place import Key
from stallwatch.fleet.place_settings import Settings
from stallwatch.fleet.verdict import JobVerdict
from tests.builders.clock import SECOND_NS
from tests.chaos.fleet import SECRET
from tests.chaos.fleet_story import word_of
from tests.unit.fleet.memory_place import MemoryPlace

NODES, CULPRIT = 4, 5  # two ranks a node
WALL_NS = 1_700_000_061 * SECOND_NS


def with_clock(word: NodeWord, seconds: float) -> NodeWord:
    """As the node would say it if its clock were so much ahead."""
    ns = int(seconds * SECOND_NS)
    ranks = tuple(
        replace(
            one,
            summary=replace(
                one.summary,
                captured_at_ns=(one.summary.captured_at_ns or 0) + ns,
                pending=tuple(replace(each, created_ns=(each.created_ns or 0) + ns) for each in one.summary.pending),
            ),
        )
        for one in word.summary.ranks
    )
    return replace(word, summary=replace(word.summary, ranks=ranks))


def judged(ahead: dict[int, float]) -> JobVerdict:
    """Each node puts when it can, a few seconds apart."""
    now = [0.0]
    place = MemoryPlace(lambda: now[0])
    key = Key("train-0a1b2c3d", place.join("train-0a1b2c3d", "node0"))
    for node in range(NODES):
        now[0] += 3.0
        word = with_clock(word_of(NODES, CULPRIT, "stands", node), ahead.get(node, 0.0))
        clock = partial(int, WALL_NS + (now[0] + ahead.get(node, 0.0)) * SECOND_NS)
        exchange(place, SECRET, Wish(key.job, word.node, key.ordinal, summary=encode_word(word)), clock)
    found = answer_to(JudgeQuestion(Settings("redis://h"), key, 8), place, SECRET)
    assert isinstance(found, JobVerdict)
    return found


@pytest.mark.parametrize("node", range(NODES))
@pytest.mark.parametrize("seconds", [-3600.0, -90.0, 90.0, 3600.0])
def test_a_node_whose_clock_is_apart_takes_no_culprit_from_the_verdict(node: int, seconds: float) -> None:
    alike = judged({})
    verdict, caveats = judged({node: seconds}).report.verdicts[0], judged({node: seconds}).report.caveats
    assert (verdict.cause, verdict.culprits, verdict.confidence) == ("not_entered", (CULPRIT,), "certain")
    assert verdict == alike.report.verdicts[0]
    assert any(f"node{node} is {abs(seconds):.0f} s {'ahead' if seconds > 0 else 'behind'}" in one for one in caveats)


def test_of_clocks_that_are_alike_nothing_is_said() -> None:
    assert judged({1: 2.0, 2: -2.0}).report.caveats == judged({}).report.caveats


def test_of_whom_no_age_is_known_or_who_says_nothing_of_its_clock_is_taken_as_it_is() -> None:
    words = tuple(word_of(NODES, CULPRIT, "stands", node) for node in range(NODES))
    ages = {word.node: 5.0 for word in words}
    dated = [replace(word, put_wall_ns=WALL_NS) for word in words]
    for odd, known in (
        (replace(words[0], put_wall_ns=0), ages),
        (replace(words[0], put_wall_ns=WALL_NS - 90 * SECOND_NS), {node: ages[node] for node in list(ages)[1:]}),
    ):
        said = Believed((odd, *dated[1:]), (), ())
        assert aligned(said, known) == said


def test_a_word_of_which_nothing_can_be_read_is_put_as_it_is() -> None:
    place = MemoryPlace(lambda: 0.0)
    seen = exchange(place, SECRET, Wish("train-0a1b2c3d", "node0", summary=b"\xc1"))
    assert not seen.problem and list(place.summaries(Key("train-0a1b2c3d", seen.ordinal))) == ["node0"]


def test_the_time_of_the_put_is_added_and_nothing_else_is_changed() -> None:
    word = word_of(NODES, CULPRIT, "stands", 0)
    assert msgspec.msgpack.decode(_dated(encode_word(word), 7), type=NodeWord) == replace(word, put_wall_ns=7)
